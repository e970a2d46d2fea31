//! Many byte strings looked for at once, byte by byte (Aho and Corasick 1975).

/// The strings, as an automaton. A node is a prefix of some string; after each byte the automaton is at the longest prefix
/// that ends the bytes seen so far.
#[derive(Debug, Clone)]
pub struct Matcher {
    nodes: Vec<Node>,
    strings: Vec<Vec<u8>>,
}

/// Where a [`Matcher`] stands; the default is the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct At(u32);

#[derive(Debug, Clone, Default)]
struct Node {
    /// Next byte to node, in order of byte.
    children: Vec<(u8, u32)>,
    /// The longest other prefix that ends this one.
    shorter: u32,
    /// This prefix is `strings[string][..len]`.
    string: u32,
    len: u32,
    /// The longest whole string that ends here: its number and length.
    hit: Option<(u32, u32)>,
}

impl Matcher {
    /// None of the strings is empty. Of equal strings the first is found.
    pub fn new(strings: Vec<Vec<u8>>) -> Matcher {
        let mut nodes = vec![Node::default()];
        for (string, bytes) in strings.iter().enumerate() {
            assert!(!bytes.is_empty(), "an empty string is everywhere");
            let mut at = 0;
            for (len, &byte) in (1..).zip(bytes) {
                at = match nodes[at].children.binary_search_by_key(&byte, |child| child.0) {
                    Ok(i) => nodes[at].children[i].1 as usize,
                    Err(i) => {
                        let child = nodes.len();
                        nodes[at].children.insert(i, (byte, child as u32));
                        nodes.push(Node { string: string as u32, len, ..Node::default() });
                        child
                    }
                };
            }
            nodes[at].hit.get_or_insert((string as u32, bytes.len() as u32));
        }
        let mut matcher = Matcher { nodes, strings };
        matcher.link();
        matcher
    }

    /// Fills in `shorter`, and the hits that come with it, nearest to the root first.
    fn link(&mut self) {
        let mut order = vec![0u32];
        let mut next = 0;
        while let Some(&parent) = order.get(next) {
            next += 1;
            for (byte, child) in self.nodes[parent as usize].children.clone() {
                if parent != 0 {
                    let shorter = self.step(At(self.nodes[parent as usize].shorter), byte).0;
                    let inherited = self.nodes[shorter as usize].hit;
                    let node = &mut self.nodes[child as usize];
                    node.shorter = shorter;
                    node.hit = node.hit.or(inherited);
                }
                order.push(child);
            }
        }
    }

    /// After one more byte.
    pub fn step(&self, at: At, byte: u8) -> At {
        let mut node = at.0;
        loop {
            let children = &self.nodes[node as usize].children;
            match children.binary_search_by_key(&byte, |child| child.0) {
                Ok(i) => return At(children[i].1),
                Err(_) if node == 0 => return At(0),
                Err(_) => node = self.nodes[node as usize].shorter,
            }
        }
    }

    /// The bytes seen that may be the beginning of a string.
    pub fn held(&self, at: At) -> &[u8] {
        match &self.nodes[at.0 as usize] {
            // The root belongs to no string, and there may be none.
            Node { len: 0, .. } => &[],
            node => &self.strings[node.string as usize][..node.len as usize],
        }
    }

    /// The longest string that ends here: its number and its length.
    pub fn hit(&self, at: At) -> Option<(usize, usize)> {
        self.nodes[at.0 as usize].hit.map(|(string, len)| (string as usize, len as usize))
    }
}
