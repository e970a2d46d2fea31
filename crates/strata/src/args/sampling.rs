//! How tokens are chosen.

use engine::{Dry, Sampling};

use super::parse;

/// How tokens are chosen. The defaults are those of llama.cpp.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Randomness; 0 always takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = parse::temperature)]
    pub temp: f32,
    /// Only the K likeliest tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40, value_parser = parse::in_range(0..=usize::MAX))]
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = parse::fraction)]
    pub top_p: f32,
    /// Only tokens at least this fraction as likely as the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = parse::fraction)]
    pub min_p: f32,
    /// Only the tokens closest to the expected information that together reach this probability; 1 for all
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = parse::fraction)]
    pub typical_p: f32,
    /// Divide positive scores of tokens that were there lately by this, multiply others; 1 changes nothing
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = parse::number(0.01..=100.0))]
    pub repeat_penalty: f32,
    /// Take this from the score of each token that was there lately
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse::number(-100.0..=100.0))]
    pub presence_penalty: f32,
    /// Take this from the score of each token as often as it was there lately
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse::number(-100.0..=100.0))]
    pub frequency_penalty: f32,
    /// For these three, lately is this many last tokens of prompt and answer
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = parse::in_range(0..=usize::MAX))]
    pub repeat_last_n: usize,
    /// Penalise tokens that would go on repeating a sequence, by this much for one token more than allowed; 0 for none
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse::number(0.0..=100.0))]
    pub dry_multiplier: f32,
    /// With each token more, the penalty for repeating grows by this factor
    #[arg(long, value_name = "X", default_value_t = 1.75, value_parser = parse::number(1.0..=100.0))]
    pub dry_base: f32,
    /// Tokens that may be repeated without a penalty
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = parse::in_range(0..=usize::MAX))]
    pub dry_allowed_length: usize,
    /// Repetitions are looked for in this many last tokens [default: all]
    #[arg(long, value_name = "N", value_parser = parse::in_range(0..=usize::MAX))]
    pub dry_last_n: Option<usize>,
    /// Add to the score of a token, again and again: 123=-5.5
    #[arg(long, value_name = "ID=X", allow_hyphen_values = true, value_parser = parse::token_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes the random choices repeatable [default: another one each time]
    #[arg(long, value_name = "N", value_parser = parse::seed)]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// With `seed` where none was given.
    pub fn sampling(&self, seed: u64) -> Sampling {
        let dry = Dry {
            multiplier: self.dry_multiplier,
            base: self.dry_base,
            allowed_length: self.dry_allowed_length,
            last_n: self.dry_last_n.unwrap_or(usize::MAX),
            ..Dry::default()
        };
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_last_n: self.repeat_last_n,
            dry: (dry.multiplier > 0.0).then_some(dry),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or(seed),
            log_probabilities: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    /// Ranges are said here and checked again by the engine: a number that one takes and the other refuses would be an
    /// error only after the model was loaded.
    #[test]
    fn the_edges_of_every_range_are_the_engines() {
        let sampling = |flags: &str| -> Option<Sampling> {
            let args = format!("strata run -m m -p t {flags}");
            match Args::try_parse_from(args.split_whitespace()).ok()?.command {
                Command::Run(args) => Some(args.sampling.sampling(1)),
                _ => None,
            }
        };
        let valid = |flags: &str| sampling(flags).expect(flags).validate(1000).map(drop);
        assert_eq!(valid(""), Ok(()));
        for flags in [
            "--temp 100 --top-p 1 --min-p 1 --typical-p 1 --repeat-penalty 100 --presence-penalty 100",
            "--temp 0 --top-p 0 --min-p 0 --typical-p 0 --repeat-penalty 0.01 --presence-penalty -100",
            "--frequency-penalty 100 --dry-multiplier 100 --dry-base 100 --repeat-last-n 0 --dry-last-n 0",
            "--frequency-penalty -100 --dry-multiplier 0.1 --dry-base 1 --logit-bias 999=-1e30",
        ] {
            assert_eq!(valid(flags), Ok(()), "{flags}");
        }
        for flags in [
            "--typical-p 1.01",
            "--repeat-penalty 0",
            "--presence-penalty 101",
            "--frequency-penalty -101",
            "--dry-multiplier -1",
            "--dry-base 0.5",
            "--logit-bias 1",
            "--logit-bias 1=inf",
            "--logit-bias 1=nan",
            "--logit-bias -1=2",
        ] {
            assert!(sampling(flags).is_none(), "{flags}");
        }
        assert_eq!(
            sampling("--logit-bias 5=1 --logit-bias 7=-2.5").unwrap().logit_bias,
            [(5, 1.0), (7, -2.5)]
        );
        assert_eq!(sampling("").unwrap().dry, None);
    }
}
