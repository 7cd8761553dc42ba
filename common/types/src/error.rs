//! The text of an error. In: an error. Out: one line with the error and all its causes. Called wherever an error is
//! printed.

use std::error::Error;
use std::fmt;

/// An error and its sources, each after a colon: `failed to read "a": permission denied`. A source whose text the error
/// before it already ends with is not repeated.
#[derive(Clone, Copy)]
pub struct Chain<'a>(pub &'a (dyn Error + 'a));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
                last = text;
            }
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error with its sources as a text, for records that hold texts.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    Chain(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|inner| inner as _)
        }
    }

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    fn printed(texts: &[&'static str]) -> String {
        let layers = texts.iter().rev().fold(None, |inner, text| Some(Box::new(Layer(text, inner))));
        chain(&*layers.unwrap())
    }

    #[test]
    fn every_source_is_said_once() {
        assert_eq!(printed(&["a"]), "a");
        assert_eq!(printed(&["a", "b", "c"]), "a: b: c");
        // A transparent error, and one that pasted its source.
        assert_eq!(printed(&["a", "a", "c"]), "a: c");
        assert_eq!(printed(&["a failed: b", "b", "c"]), "a failed: b: c");
        assert_eq!(printed(&["a failed: b: c", "b: c", "c"]), "a failed: b: c");
        // Somewhere in the text is not its end.
        assert_eq!(printed(&["no b to be had", "b"]), "no b to be had: b");
    }
}
