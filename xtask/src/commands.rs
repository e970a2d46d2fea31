//! The commands that a document tells its reader to type: the lines of its `sh` blocks.

/// Every command of the fenced blocks marked `sh`, in order: comments and empty lines left out, a line that ends in
/// `\` joined with the next.
pub fn documented(markdown: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut inside = false;
    let mut started = String::new();
    for line in markdown.lines().map(str::trim) {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if !inside || line.is_empty() || line.starts_with('#') => {}
            _ => match line.strip_suffix('\\') {
                Some(part) => started.push_str(part),
                None => commands.push(std::mem::take(&mut started) + line),
            },
        }
    }
    commands
}

/// Whether a shell script holds the command as printed, outside its comments.
pub fn script_runs(script: &str, command: &str) -> bool {
    script.lines().map(str::trim).filter(|line| !line.starts_with('#')).any(|line| line.contains(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sh_blocks_count() {
        let text =
            "Type `no`.\n```text\nno\n```\n```sh\n# why\none \\\n  two\n\nthree\n```\nno\n```sh\nfour\n```\n";
        assert_eq!(documented(text), ["one two", "three", "four"]);
    }

    #[test]
    fn a_comment_runs_nothing() {
        assert!(script_runs("x=$(cargo a)\n", "cargo a"));
        assert!(!script_runs("# cargo a\n", "cargo a"));
    }
}
