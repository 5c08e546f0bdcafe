//! The tokens of C++ text.

/// A kind of token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name or a keyword.
    Word,
    /// A literal.
    Literal,
    /// An operator or a bracket.
    Sign,
}

/// A token, and the file and line that the last `#line` directive gives it.
#[derive(Clone, Copy, Debug)]
pub struct Token<'t> {
    pub kind: Kind,
    pub text: &'t str,
    /// The offset of the first byte in the text.
    pub at: usize,
    pub file: &'t str,
    pub line: u32,
}

impl Token<'_> {
    /// Returns the offset behind the last byte.
    pub fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

/// Signs of two characters. `<<` and `>>` count as two signs, since `>>` may end two lists of template arguments.
const PAIRS: [&str; 17] = [
    "::", "->", "++", "--", "&&", "||", "==", "!=", "<=", ">=", "+=", "-=", "*=", "/=", "%=", "^=",
    "|=",
];

/// Returns the tokens of `text` without comments and directives.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut file, mut line) = (0, "", 1);
    let mut is_directive_allowed = true;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        if first == '\n' {
            (at, line, is_directive_allowed) = (at + 1, line + 1, true);
            continue;
        }
        let length = match first {
            '#' if is_directive_allowed => {
                let length = directive_length(rest);
                if let Some((number, name)) = line_directive(&rest[..length]) {
                    // The directive says what comes behind its own line.
                    (line, file) = (number - 1, name);
                } else {
                    line += rest[..length].matches('\n').count() as u32;
                }
                at += length;
                continue;
            }
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            c if c.is_whitespace() => c.len_utf8(),
            _ => {
                let (kind, length) = token_at(rest);
                let text = &rest[..length];
                #[rustfmt::skip]
                found.push(Token { kind, text, at, file, line });
                is_directive_allowed = false;
                length
            }
        };
        at += length;
    }
    found
}

/// Returns the length of a directive with the lines that continue it.
fn directive_length(rest: &str) -> usize {
    let mut length = 0;
    for line in rest.split('\n') {
        length += line.len();
        if !line.ends_with('\\') {
            break;
        }
        length += 1;
    }
    length.min(rest.len())
}

/// Returns the line number and the file of a `#line` directive.
fn line_directive(directive: &str) -> Option<(u32, &str)> {
    let (number, name) = directive.strip_prefix("#line ")?.split_once(' ')?;
    Some((number.parse().ok()?, name.trim_matches('"')))
}

fn token_at(rest: &str) -> (Kind, usize) {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let while_of = |is_of: &dyn Fn(char) -> bool| rest.find(|c| !is_of(c)).unwrap_or(rest.len());
    match rest.as_bytes()[0] {
        quote @ (b'"' | b'\'') => (Kind::Literal, quoted_length(rest, quote)),
        b'0'..=b'9' => {
            let is_of_number = |c: char| is_of_word(c) || c == '.' || c == '\'';
            (Kind::Literal, while_of(&is_of_number))
        }
        b'_' | b'a'..=b'z' | b'A'..=b'Z' => (Kind::Word, while_of(&is_of_word)),
        _ if rest.starts_with("...") => (Kind::Sign, 3),
        _ if rest.starts_with("&=") || PAIRS.iter().any(|pair| rest.starts_with(pair)) => {
            (Kind::Sign, 2)
        }
        _ => (Kind::Sign, rest.chars().next().map_or(1, char::len_utf8)),
    }
}

/// Returns the length of a literal in quotes.
fn quoted_length(rest: &str, quote: u8) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}
