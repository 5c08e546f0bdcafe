//! The tokens inside `#[fused_kernel(...)]`.

use crate::draft::Draft;
use crate::value::Value;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Lit;

/// Reads `key = value, key = value, …`; a value is a word, a string, an integer, `true` or `false`. A place is the tokens themselves.
///
/// What cannot be read is recorded in the draft; the rest is read all the same.
#[must_use]
pub fn parse_attribute(tokens: TokenStream) -> Draft<TokenStream> {
    let mut draft = Draft::default();
    for option in split_at_commas(tokens) {
        read_option(&mut draft, &option);
    }
    draft
}

fn read_option(draft: &mut Draft<TokenStream>, option: &[TokenTree]) {
    match option {
        [TokenTree::Ident(key), TokenTree::Punct(equals), value @ ..]
            if equals.as_char() == '=' && !value.is_empty() =>
        {
            let key_place = TokenStream::from(option[0].clone());
            let value_place = value.iter().cloned().collect();
            draft.set(&key.to_string(), key_place, read_value(value), value_place);
        }
        _ => {
            let place = option.iter().cloned().collect();
            draft.mistake(
                place,
                "this is not `key = value`",
                "write, for example, world = 8",
            );
        }
    }
}

fn read_value(tokens: &[TokenTree]) -> Value {
    match tokens {
        // A value that comes from a macro_rules variable sits in a group without delimiters.
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

    fn parse(text: &str) -> Draft<TokenStream> {
        parse_attribute(text.parse().expect("tokens"))
    }

    #[test]
    fn words_strings_and_integers() {
        let text = r#"op = "ag_gemm", world = 8, m = dynamic, n = 1_024, k = 0x2000u64,
            b_layout = nk, transfer = "copy_engine", stages = 4,"#;
        let spec = parse(text).finish(TokenStream::new()).expect("valid").spec;
        let gemm = spec.problem().gemm().expect("a GEMM");
        assert_eq!(gemm.n, Dim::Static(1024));
        assert_eq!(gemm.k, Dim::Static(8192));
        assert_eq!(gemm.b_layout, BLayout::Nk);
        assert_eq!(gemm.tuning.transfer, Some(Transfer::CopyEngine));
    }

    #[test]
    fn what_cannot_be_read_hides_nothing_else() {
        let text =
            "op = ag_gemm, world, m =, n = 4 * 256, k = 1.5, name = true, stages = -4, stagess = 4";
        let mistakes = parse(text)
            .finish(TokenStream::new())
            .expect_err("mistakes");
        let found: Vec<_> = mistakes
            .iter()
            .map(|m| format!("{} | {}", m.place, m.reason))
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
                " | `world`, `m` are missing",
            ]
        );
    }
}
