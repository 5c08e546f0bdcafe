//! The scan of a kernel's text: scopes, function bodies, statements and calls.
//!
//! The scan knows only as much of C++ as the headers of kernels use. It takes a text that it does not understand for a
//! declaration, in which it changes nothing.

use super::tokens::{Kind, Token, tokens};

/// Words that begin a statement in which nothing is changed.
const SKIPPED: [&str; 9] = [
    "static_assert",
    "using",
    "typedef",
    "asm",
    "enum",
    "struct",
    "class",
    "template",
    "namespace",
];
/// Words that begin a declaration.
const DECLARING: [&str; 9] = [
    "const",
    "constexpr",
    "static",
    "auto",
    "typename",
    "volatile",
    "unsigned",
    "decltype",
    "extern",
];

/// A scan of one text.
pub struct Scan<'t> {
    pub text: &'t str,
    pub tokens: Vec<Token<'t>>,
    /// The index of the token that closes the bracket with this index, for each token.
    close: Vec<usize>,
    /// The function that the scan is in.
    function: &'t str,
    /// The open structs and classes: the index of the closing bracket, and the name.
    types: Vec<(usize, &'t str)>,
    /// The places that mutants may change, an outer statement or call before what it contains.
    pub places: Vec<Place<'t>>,
}

/// A place that mutants may change.
#[derive(Clone, Copy)]
pub struct Place<'t> {
    pub form: Form,
    /// The function that the place is in.
    pub function: &'t str,
    /// The innermost struct that the place is in.
    pub type_name: &'t str,
}

/// The contents of a place, as indices of tokens.
#[derive(Clone, Copy)]
pub enum Form {
    /// A statement that is an expression.
    Statement { begin: usize, semicolon: usize },
    /// A call: the name of the function, and the bracket that opens its arguments.
    Call { name: usize, open: usize },
}

/// Returns the index of the closing bracket for each opening one.
fn closing(tokens: &[Token<'_>]) -> Vec<usize> {
    let mut close: Vec<usize> = (0..tokens.len()).collect();
    let mut open = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => open.push(index),
            ")" | "]" | "}" => {
                if let Some(begin) = open.pop() {
                    close[begin] = index;
                }
            }
            _ => {}
        }
    }
    close
}

impl<'t> Scan<'t> {
    /// Scans a text.
    pub fn of(text: &'t str) -> Self {
        let tokens = tokens(text);
        let close = closing(&tokens);
        let mut scan = Self {
            text,
            tokens,
            close,
            function: "",
            types: Vec::new(),
            places: Vec::new(),
        };
        scan.scope();
        scan
    }

    fn found(&mut self, form: Form) {
        let type_name = self.types.last().map_or("", |(_, name)| name);
        self.places.push(Place {
            form,
            function: self.function,
            type_name,
        });
    }

    /// Returns the text of a token, or nothing behind the last one.
    pub fn word(&self, index: usize) -> &'t str {
        self.tokens.get(index).map_or("", |token| token.text)
    }

    pub fn close(&self, index: usize) -> usize {
        self.close[index]
    }

    /// Scans namespaces and types, down to the bodies of functions.
    fn scope(&mut self) {
        let (mut at, mut head) = (0, 0);
        while at < self.tokens.len() {
            match self.word(at) {
                ";" => head = at + 1,
                "}" => {
                    self.types.retain(|(end, _)| *end != at);
                    head = at + 1;
                }
                "(" | "[" => at = self.close(at),
                "{" => match self.opened(head, at) {
                    Opened::Scope(name) => {
                        self.types.extend(name.map(|name| (self.close(at), name)));
                        head = at + 1;
                    }
                    Opened::Body(name) => {
                        self.function = name;
                        self.block(at + 1, self.close(at));
                        at = self.close(at);
                        head = at + 1;
                    }
                    Opened::Other => at = self.close(at),
                },
                _ => {}
            }
            at += 1;
        }
    }

    /// Returns what the bracket `{` at `at` opens, whose declaration begins at `head`.
    fn opened(&self, head: usize, at: usize) -> Opened<'t> {
        let (mut name, mut kind) = (None, None);
        let mut index = head;
        while index < at {
            let before = self.word(index.wrapping_sub(1));
            match self.word(index) {
                "namespace" => return Opened::Scope(None),
                "enum" | "concept" => return Opened::Other,
                "struct" | "class" if index == head || !matches!(before, "<" | ",") => {
                    kind = Some(self.word(index + 1));
                }
                "(" => {
                    let is_name = self.tokens[index - 1].kind == Kind::Word;
                    if is_name
                        && !matches!(before, "requires" | "noexcept" | "alignas" | "decltype")
                    {
                        name = Some(before);
                    }
                    index = self.close(index);
                }
                _ => {}
            }
            index += 1;
        }
        match (kind, name) {
            (Some(kind), _) => Opened::Scope(Some(kind)),
            (None, Some(name)) => Opened::Body(name),
            (None, None) if self.word(head) == "extern" => Opened::Scope(None),
            _ => Opened::Other,
        }
    }

    /// Scans the statements of a block.
    fn block(&mut self, begin: usize, end: usize) {
        let mut at = begin;
        while at < end {
            at = self.statement(at, end);
        }
    }

    /// Scans the statement at `at`, and returns the index behind it.
    fn statement(&mut self, at: usize, end: usize) -> usize {
        match self.word(at) {
            "{" => {
                self.block(at + 1, self.close(at));
                self.close(at) + 1
            }
            ";" => at + 1,
            "if" | "for" | "while" | "switch" => {
                let open = at + 1 + usize::from(self.word(at + 1) == "constexpr");
                self.expression(open + 1, self.close(open));
                let behind = self.statement(self.close(open) + 1, end);
                match self.word(behind) {
                    "else" if self.word(at) == "if" => self.statement(behind + 1, end),
                    _ => behind,
                }
            }
            "do" => {
                let behind = self.statement(at + 1, end);
                self.semicolon(behind, end) + 1
            }
            "case" | "default" => {
                let colon = (at..end).find(|index| self.word(*index) == ":");
                colon.unwrap_or(end) + 1
            }
            word if SKIPPED.contains(&word) => self.semicolon(at, end) + 1,
            _ => {
                let semicolon = self.semicolon(at, end);
                if self.is_expression(at) {
                    self.found(Form::Statement {
                        begin: at,
                        semicolon,
                    });
                }
                self.expression(at, semicolon);
                semicolon + 1
            }
        }
    }

    /// Returns the index of the next semicolon outside brackets.
    fn semicolon(&self, begin: usize, end: usize) -> usize {
        let mut at = begin;
        while at < end && self.word(at) != ";" {
            at = self.close(at) + 1;
        }
        at.min(end)
    }

    /// Returns whether the statement at `at` is an expression, and no declaration or jump.
    fn is_expression(&self, at: usize) -> bool {
        let first = self.word(at);
        if matches!(first, "++" | "--" | "*" | "(") {
            return true;
        }
        let is_jump = matches!(first, "return" | "break" | "continue" | "goto");
        if self.tokens[at].kind != Kind::Word || is_jump || DECLARING.contains(&first) {
            return false;
        }
        let mut index = at + 1;
        loop {
            match self.word(index) {
                "::" | "." | "->" => index += 2 + usize::from(self.word(index + 1) == "template"),
                "<" => match self.behind_template_arguments(index) {
                    Some(behind) if matches!(self.word(behind), "(" | "::" | "{") => index = behind,
                    Some(_) => return false,
                    None => return true,
                },
                "(" | "[" | "{" => index = self.close(index) + 1,
                "*" | "&" | "&&" => return false,
                _ => {
                    return self
                        .tokens
                        .get(index)
                        .is_none_or(|next| next.kind == Kind::Sign);
                }
            }
        }
    }

    /// Returns the index behind the template arguments that begin at `open`, if these are such arguments.
    pub fn behind_template_arguments(&self, open: usize) -> Option<usize> {
        let (mut depth, mut at) = (0, open);
        loop {
            match self.word(at) {
                "<" => depth += 1,
                ">" => depth -= 1,
                "" | ";" | "{" | "}" | ")" | "&&" | "||" => return None,
                _ => {}
            }
            if depth == 0 {
                return Some(at + 1);
            }
            at = self.close(at) + 1;
        }
    }

    /// Scans an expression or declaration for calls, and for lambdas, whose bodies have statements.
    fn expression(&mut self, begin: usize, end: usize) {
        let mut at = begin;
        while at < end {
            let token = self.tokens[at];
            if token.text == "[" && self.begins_lambda(at) {
                let body = (at..end).map(|index| self.skip_to_body(index));
                let body = body.flatten().next().filter(|body| *body < end);
                if let Some(body) = body {
                    self.block(body + 1, self.close(body));
                    at = self.close(body) + 1;
                    continue;
                }
            }
            if token.kind == Kind::Word {
                let behind = match self.word(at + 1) {
                    "<" => self.behind_template_arguments(at + 1),
                    _ => Some(at + 1),
                };
                if let Some(open) = behind.filter(|open| self.word(*open) == "(") {
                    self.found(Form::Call { name: at, open });
                }
            }
            at += 1;
        }
    }

    /// Returns whether the bracket `[` begins a lambda, and no index or attribute.
    fn begins_lambda(&self, at: usize) -> bool {
        let before = self.tokens[at - 1];
        let is_value = before.kind == Kind::Word && before.text != "return"
            || matches!(before.text, ")" | "]" | "[");
        !is_value && self.word(at + 1) != "["
    }

    /// Returns the bracket that opens the body of the lambda at `at`.
    fn skip_to_body(&self, at: usize) -> Option<usize> {
        if self.word(at) != "[" {
            return None;
        }
        let mut index = self.close(at) + 1;
        while !matches!(self.word(index), "{" | ";" | "") {
            index = self.close(index) + 1;
        }
        Some(index).filter(|index| self.word(*index) == "{")
    }

    /// Returns the arguments between two brackets, as ranges of tokens.
    pub fn arguments(&self, open: usize) -> Vec<(usize, usize)> {
        let end = self.close(open);
        let (mut found, mut begin, mut at) = (Vec::new(), open + 1, open + 1);
        while at < end {
            if self.word(at) == "," {
                found.push((begin, at));
                begin = at + 1;
            }
            let is_template = self.word(at) == "<" && self.tokens[at - 1].kind == Kind::Word;
            let behind = is_template
                .then(|| self.behind_template_arguments(at))
                .flatten();
            at = behind.unwrap_or(self.close(at) + 1);
        }
        if begin < end {
            found.push((begin, end));
        }
        found
    }
}

/// The scope that a bracket opens.
enum Opened<'t> {
    /// A namespace, or a type with this name.
    Scope(Option<&'t str>),
    /// The body of a function of this name.
    Body(&'t str),
    /// A list of values, or the requirements of a concept.
    Other,
}
