//! `mkernel-gen plan --svg`: pictures are well-formed and complete, and their text has room.

use super::{code, json_lines, mkernel_gen, stderr};
use roxmltree::{Document, Node};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A kernel of each operator, whose tiles and chunks are few enough for a cell each.
const KERNELS: [&str; 14] = [
    "--op=ag_gemm --world=4 --m=4096 --n=2048 --k=4096 --transfer=sm_push",
    "--op=gemm_rs --world=4 --m=4096 --n=2048 --k=4096",
    "--op=gemm_ar --world=8 --nodes=2 --m=2048 --n=2048 --k=4096",
    "--op=gemm --world=2 --m=1000 --n=2048 --k=512",
    "--op=ring_attention --world=4 --batch=1 --seq=4096 --heads=8 --kv-heads=8 --head-dim=128 --causal",
    "--op=dispatch_gemm --world=4 --experts=16 --top-k=4 --max-tokens=1024 --hidden=2048 --intermediate=1024",
    "--op=moe_layer --world=4 --experts=16 --top-k=4 --max-tokens=1024 --hidden=2048 --intermediate=1024 --swiglu",
    "--op=gemm_combine --world=4 --experts=16 --top-k=4 --max-tokens=1024 --hidden=2048 --intermediate=1024",
    "--op=combine --world=4 --experts=16 --top-k=4 --max-tokens=1024 --hidden=2048",
    "--op=all_reduce --world=8 --m=128 --n=8192",
    "--op=all_gather --world=8 --m=128 --n=8192",
    "--op=reduce_scatter --world=4 --m=256 --n=8192",
    "--op=broadcast --world=4 --m=32 --n=8192",
    "--op=all_to_all --world=4 --m=64 --n=8192",
];

/// Plans a kernel. Returns its plan as JSON and its picture.
fn drawn(kernel: &str, dir: &Path) -> (Value, String) {
    let path = dir.join("plan.svg");
    let mut command = mkernel_gen(dir);
    command.args(["--json", "plan", "--svg"]).arg(&path);
    let output = command.args(kernel.split(' ')).output().expect("starts");
    assert_eq!(code(&output), 0, "{kernel}: {}", stderr(&output));
    let svg = fs::read_to_string(path).expect("a picture");
    (json_lines(&output).remove(0), svg)
}

fn rects<'a>(svg: &'a Document<'_>) -> impl Iterator<Item = Node<'a, 'a>> {
    let all = svg.descendants().filter(|node| node.has_tag_name("rect"));
    // The first one is the background.
    all.skip(1)
}

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    let value = node.attribute(name).expect("an attribute");
    value.parse().expect("a number")
}

fn array<'a>(plan: &'a Value, name: &str) -> &'a [Value] {
    plan[name].as_array().map_or(&[], Vec::as_slice)
}

/// The numbers of tiles, and of the chunks, owners or keys that tiles wait for or feed.
fn cells(plan: &Value) -> u64 {
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let config = &plan["spec"]["config"];
    let world = count(&config["world"]);
    match config["op"].as_str().expect("an operator") {
        "dispatch_gemm" | "moe_layer" | "gemm_combine" => return count(&plan["shape"]["experts"]),
        "combine" => return world * world,
        "ring_attention" => {
            // Causal attention of rank 0, which has the first chunk.
            let rows = count(&plan["row_tiles"]);
            return count(&plan["tiles"]) + rows * (rows + 1) / 2;
        }
        _ => {}
    }
    let order = &plan["order"];
    let tiles = count(&order["row_tiles"]) * count(&order["col_tiles"]);
    let chunks = world * count(&plan["chunks"]["per_shard"]);
    match &plan["reduction"] {
        _ if chunks > 0 => 2 * tiles + chunks,
        Value::Object(reduction) if reduction["shots"] == 2 => 2 * tiles,
        _ => tiles,
    }
}

/// The chunks of all shards of a collective, or the shards if they have no chunks.
fn chunks(plan: &Value) -> u64 {
    let count = |value: &Value| value.as_u64();
    let Some(shard_vecs) = count(&plan["shard_vecs"]).filter(|_| plan["shots"] != 1) else {
        return 0;
    };
    let owners = count(&plan["owners"]["count"]).or(count(&plan["spec"]["config"]["world"]));
    let of_shard = match count(&plan["chunk_vecs"]) {
        Some(vecs @ 1..) => shard_vecs.div_ceil(vecs),
        _ => 1,
    };
    owners.expect("ranks") * of_shard
}

#[test]
fn everything_in_the_plan_is_in_the_picture() {
    let dir = TempDir::new().expect("temporary folder");
    for kernel in KERNELS {
        let (plan, svg) = drawn(kernel, dir.path());
        let svg = Document::parse(&svg).expect("XML");
        let regions = array(&plan, "smem").len() + array(&plan, "comm_smem").len();
        let roles = array(&plan, "roles").len();
        let wanted = (roles + regions) as u64 + cells(&plan) + chunks(&plan);
        assert!(roles > 0);
        assert_eq!(rects(&svg).count() as u64, wanted, "{kernel}");
        let texts = svg.descendants().filter(|node| node.has_tag_name("text"));
        let all: String = texts
            .filter_map(|node| node.text())
            .collect::<Vec<_>>()
            .join("\n");
        for region in array(&plan, "smem") {
            let name = region["name"].as_str().expect("a name");
            assert!(all.contains(name), "{kernel}: {name}");
        }
    }
}

/// Left, top, right and bottom of text in a font of the usual width.
fn place(text: Node<'_, '_>) -> [f64; 4] {
    let size = number(text, "font-size");
    // Digits are wider than the average character of a sentence.
    let em = |c: char| if c.is_ascii_digit() { 0.64 } else { 0.52 };
    let ems: f64 = text.text().unwrap_or("").trim().chars().map(em).sum();
    let (width, x, y) = (ems * size, number(text, "x"), number(text, "y"));
    let left = match text.attribute("text-anchor") {
        Some("middle") => x - width / 2.0,
        Some("end") => x - width,
        _ => x,
    };
    // The middle line of capital letters.
    [left, y - size * 0.36, left + width, y + size * 0.36]
}

fn overlap(a: &[f64; 4], b: &[f64; 4]) -> bool {
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

#[test]
fn text_is_inside_the_picture_and_apart_from_other_text() {
    let dir = TempDir::new().expect("temporary folder");
    for kernel in KERNELS {
        let (_, svg) = drawn(kernel, dir.path());
        let svg = Document::parse(&svg).expect("XML");
        let root = svg.root_element();
        let (width, height) = (number(root, "width"), number(root, "height"));
        let texts = svg.descendants().filter(|node| node.has_tag_name("text"));
        let texts: Vec<_> = texts
            .map(|node| (place(node), node.text().unwrap_or("").trim()))
            .collect();
        for (i, (at, text)) in texts.iter().enumerate() {
            let inside = at[0] >= 0.0 && at[1] >= 0.0 && at[2] <= width && at[3] <= height;
            assert!(inside, "{kernel}: {text} at {at:?}");
            for (other, also) in &texts[..i] {
                assert!(
                    !overlap(at, other),
                    "{kernel}: {text:?} at {at:?} over {also:?} at {other:?}"
                );
            }
        }
        // Text in the middle of a rectangle does not leave it.
        let boxes: Vec<_> = rects(&svg)
            .map(|rect| {
                let (x, y) = (number(rect, "x"), number(rect, "y"));
                [x, y, x + number(rect, "width"), y + number(rect, "height")]
            })
            .collect();
        for (at, text) in &texts {
            let middle = [(at[0] + at[2]) / 2.0, (at[1] + at[3]) / 2.0];
            let under = boxes
                .iter()
                .find(|b| overlap(&[middle[0], middle[1], middle[0], middle[1]], b));
            if let Some(b) = under {
                assert!(
                    at[0] >= b[0] && at[2] <= b[2],
                    "{kernel}: {text:?} at {at:?} in {b:?}"
                );
            }
        }
    }
}

#[test]
fn buckets_and_kernels_have_a_file_each() {
    let dir = TempDir::new().expect("temporary folder");
    let path = dir.path().join("plan.svg");
    let rows = "--op=gemm_ar --world=8 --m=..=8192 --n=7168 --k=2048 --buckets=2";
    let mut command = mkernel_gen(dir.path());
    command.arg("plan").arg("--svg").arg(&path);
    let output = command.args(rows.split(' ')).output().expect("starts");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    for file in ["plan-1.svg", "plan-2.svg"] {
        assert!(stderr(&output).contains(file), "{}", stderr(&output));
        let svg = fs::read_to_string(dir.path().join(file)).expect("a picture");
        assert!(svg.contains("calls of up to"), "{file}");
    }
    assert!(!path.exists());
    let mut command = mkernel_gen(dir.path());
    command.args(["plan", "--svg", "/absent/plan.svg"]);
    let output = command
        .args(KERNELS[3].split(' '))
        .output()
        .expect("starts");
    assert_eq!(code(&output), 4, "{}", stderr(&output));
}

/// Each figure in the book is drawn by the command above it.
#[test]
fn figures_of_the_book_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let dir = TempDir::new().expect("temporary folder");
    let mut count = 0;
    for chapter in fs::read_dir(root.join("docs/book/src")).expect("the book") {
        let chapter = fs::read_to_string(chapter.expect("a file").path()).expect("text");
        let prefix = "mkernel-gen plan ";
        let commands = chapter.lines().filter_map(|line| line.strip_prefix(prefix));
        for command in commands {
            let Some((kernel, figure)) = command.split_once(" --svg docs/") else {
                continue;
            };
            let (_, svg) = drawn(kernel, dir.path());
            let stored = fs::read_to_string(root.join("docs").join(figure)).expect("a figure");
            assert!(svg == stored, "run: {prefix}{command}");
            count += 1;
        }
    }
    assert!(count > 0);
}
