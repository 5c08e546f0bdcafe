//! The tokens inside `#[fused_kernel(...)]`.

use crate::parser::Parser;
use mkernel_spec::Value;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Lit;

/// Reads `key = value, key = value, …`. A value is a word, a string, a number, `true` or `false`. Spans are the tokens
/// themselves.
///
/// Options that cannot be read become errors of the parser. All other options are still read.
#[must_use]
pub fn parse_attribute(tokens: TokenStream) -> Parser<TokenStream> {
    let mut parser = Parser::default().with_optional_world();
    for option in split_at_commas(tokens) {
        read_option(&mut parser, &option);
    }
    parser
}

fn read_option(parser: &mut Parser<TokenStream>, option: &[TokenTree]) {
    match option {
        [TokenTree::Ident(key), TokenTree::Punct(equals), value @ ..]
            if equals.as_char() == '=' && !value.is_empty() =>
        {
            let key_span = TokenStream::from(option[0].clone());
            let value_span = value.iter().cloned().collect();
            parser.set(&key.to_string(), key_span, read_value(value), value_span);
        }
        _ => {
            let span = option.iter().cloned().collect();
            parser.error(
                span,
                "this is not `key = value`",
                "write, for example, n = 4096",
            );
        }
    }
}

fn read_value(tokens: &[TokenTree]) -> Value {
    match tokens {
        // A value from a variable of `macro_rules!` is in a group without delimiters.
        [TokenTree::Group(group)] if group.delimiter() == Delimiter::None => {
            read_value(&group.stream().into_iter().collect::<Vec<_>>())
        }
        [TokenTree::Ident(word)] if *word == "true" || *word == "false" => {
            Value::Boolean(*word == "true")
        }
        [TokenTree::Ident(word)] => Value::Word(word.to_string()),
        [TokenTree::Literal(literal)] => match Lit::new(literal.clone()) {
            Lit::Str(text) => Value::Word(text.value()),
            Lit::Int(number) => number.base10_parse().map_or(
                Value::Other("an integer of more than 127 bits"),
                Value::Integer,
            ),
            Lit::Float(number) => Value::Fraction(number.base10_digits().to_owned()),
            _ => Value::Other("this literal"),
        },
        [TokenTree::Punct(minus), number] if minus.as_char() == '-' => {
            match read_value(std::slice::from_ref(number)) {
                Value::Integer(value) => Value::Integer(-value),
                Value::Fraction(text) => Value::Fraction(format!("-{text}")),
                _ => Value::Other("an expression"),
            }
        }
        _ => Value::Other("an expression"),
    }
}

fn split_at_commas(tokens: TokenStream) -> Vec<Vec<TokenTree>> {
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ',');
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let parts = tokens.split(is_comma).filter(|part| !part.is_empty());
    parts.map(<[TokenTree]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::{BLayout, Dim, Transfer};

    fn parse(text: &str) -> Parser<TokenStream> {
        parse_attribute(text.parse().expect("tokens"))
    }

    #[test]
    fn words_strings_and_integers() {
        let text = r#"op = "ag_gemm", world = 8, m = 4096, n = 1_024, k = 0x2000u64,
            b_layout = nk, transfer = "copy_engine", stages = 4,"#;
        let spec = parse(text).finish(TokenStream::new()).expect("valid").spec;
        let gemm = spec.problem().gemm().expect("a GEMM");
        assert_eq!(gemm.n, Dim::Static(1024));
        assert_eq!(gemm.k, Dim::Static(8192));
        assert_eq!(gemm.b_layout, BLayout::Nk);
        assert_eq!(gemm.tuning.transfer, Some(Transfer::CopyEngine));
    }

    #[test]
    fn unreadable_options_hide_no_other_error() {
        let text =
            "op = ag_gemm, world, m =, n = 4 * 256, k = 1.5, name = true, stages = -4, stagess = 4";
        let diagnostics = parse(text)
            .finish(TokenStream::new())
            .expect_err("diagnostics");
        let found: Vec<_> = diagnostics
            .iter()
            .map(|m| format!("{} | {}", m.span, m.reason))
            .collect();
        assert_eq!(
            found,
            [
                "world | this is not `key = value`",
                "m = | this is not `key = value`",
                "4 * 256 | n: an expression is not possible",
                "1.5 | k: 1.5 is not possible",
                "true | name: a boolean is not possible",
                "- 4 | stages: -4 is not possible",
                "stagess | there is no option `stagess`",
                " | `m` is missing",
            ]
        );
    }
}
