//! The page that `safetensors map -o report.html` writes, in a browser where there is one.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::Command;

use crate::fixtures::*;

/// Writes the page about a checkpoint in a directory.
fn page(dir: &Path, input: &str) -> PathBuf {
    dir.run(&["map", input, "-o", "report.html"]).quiet();
    dir.at("report.html")
}

/// The data of the page about a checkpoint.
pub(crate) fn data(dir: &Path, args: &[&str]) -> serde_json::Value {
    let page = dir.run(&[&["map", "-o", "-"], args].concat()).quiet().out();
    let (_, data) = page.split_once("type=\"application/json\" id=\"data\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

/// A checkpoint of tensors of two bytes each, with these names.
fn checkpoint<N: AsRef<str>>(dir: &Path, names: impl IntoIterator<Item = N>) {
    let view = || array(&[1, 2], &[1_u8, 2]);
    let tensors = names.into_iter().map(|name| (name, view()));
    let options = quick().metadata([("format", "pt")]);
    save(dir.at("m.safetensors"), tensors, &options).unwrap();
}

/// Runs a headless browser on a page. `None` if none is installed, which the output says.
fn browser(page: &Path, fragment: &str, args: &[&str]) -> Option<(String, String)> {
    let profile = temp_dir();
    for name in ["chromium", "chromium-browser", "google-chrome"] {
        let mut command = Command::new(name);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
        command.args(["--disable-background-networking", "--disable-component-update"]);
        command.args(["--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=20000"]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).args(args);
        match command.arg(format!("file://{}#{fragment}", page.display())).output() {
            Ok(output) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                assert!(output.status.success(), "{}", text(&output.stderr));
                return Some((text(&output.stdout), text(&output.stderr)));
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{name}: {error}"),
        }
    }
    eprintln!("SKIPPED: chromium: NOT INSTALLED. The page is not tested in a browser.");
    None
}

/// The page as the browser has it once its script has run. The script must not have failed.
fn dom(page: &Path, fragment: &str) -> Option<String> {
    let (dom, log) = browser(page, fragment, &["--dump-dom"])?;
    let complaints: Vec<_> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    Some(dom)
}

#[test]
fn a_page_is_one_file_that_asks_for_nothing() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    let page = fs::read_to_string(page(dir.path(), "model.safetensors")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>\n") && page.ends_with("</html>\n"));
    assert!(page.contains("content=\"default-src 'none'; script-src 'sha256-"));
    for outside in ["http:", "https:", " src=", " href=", "@import", "url(", "innerHTML", "eval("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("<script").count(), 2, "the data and the script");
}

#[test]
fn a_browser_shows_map_tree_dtypes_metadata_and_files() {
    let dir = temp_dir();
    checkpoint(
        dir.path(),
        ["embed.weight", "layers.0.a", "layers.0.b", "layers.1.a", "layers.1.b"],
    );
    let page = page(dir.path(), "m.safetensors");
    let Some(start) = dom(&page, "") else { return };
    for shown in [
        "<h1 id=\"title\">m.safetensors</h1>",
        "5 tensors  ·  10 parameters  ·  10 B  ·  U8",
        "layers.0…1",
        "×2",
        "class=\"tile",
        "U8 [1, 2]",
    ] {
        assert!(start.contains(shown), "no {shown:?} in {start}");
    }
    let found = dom(&page, "q=LAYERS.1").unwrap();
    assert!(
        found.contains("<mark>layers.</mark></span>")
            && found.contains("<mark>1</mark>.a<")
            && !found.contains("embed.weight</span><span class=\"kind")
    );
    assert!(found.contains("Tensors<small>2</small>"), "{found}");
    assert!(dom(&page, "q=nothing").unwrap().contains("No tensor matches."));
    assert!(dom(&page, "tab=metadata").unwrap().contains("<dt>format</dt><dd>pt</dd>"));
    assert!(dom(&page, "tab=dtypes").unwrap().contains("<td>100.0%</td>"));
    assert!(dom(&page, "tab=files").unwrap().contains("<td>m.safetensors</td>"));
    assert!(dom(&page, "at=layers.0…1&tab=no").unwrap().contains("disabled=\"\">0…1</button>"));
}

/// Names and metadata that would run scripts or load pictures if they were taken for HTML.
#[test]
fn hostile_text_is_only_text() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let dir = temp_dir();
    let attack = format!(
        "</script></title><img src={address}/a onerror=document.title='owned'>\
         <script>document.title='owned'</script><link rel=stylesheet href={address}/b><!--"
    );
    let view = array(&[1], &[1_u8]);
    let names =
        [attack.clone(), format!("{attack}.x"), "__proto__.constructor".into(), "\u{202e}".into()];
    let options = quick().metadata([(attack.as_str(), attack.as_str())]);
    save(dir.at("m.safetensors"), names.map(|name| (name, view)), &options).unwrap();
    dir.run(&["map", "m.safetensors", "-o", "report.html", "--title", &attack]).success();
    let page = dir.at("report.html");
    let text = fs::read_to_string(&page).unwrap();
    assert!(is_plain(&text) && !text.contains("<img") && text.matches("</script>").count() == 2);
    for fragment in ["", "tab=metadata", "q=script", "at=__proto__&by=constructor&tab=toString"] {
        let Some(dom) = dom(&page, fragment) else { return };
        assert!(!dom.contains("<title>owned") && !dom.contains("<img") && !dom.contains("<link"));
        assert!(dom.contains("&lt;script&gt;document.title='owned'"), "{dom}");
    }
    let asked = listener.accept().map(|_| ()).map_err(|error| error.kind());
    assert_eq!(asked, Err(ErrorKind::WouldBlock), "the page has asked a server");
}

#[test]
fn thirty_thousand_tensors_are_a_small_page_and_few_elements() {
    let dir = temp_dir();
    checkpoint(
        dir.path(),
        (0..30_000).map(|i| format!("m.{}.{}{}.w", i % 50, ["a", "b"][i % 2], i)),
    );
    let page = page(dir.path(), "m.safetensors");
    let bytes = fs::metadata(&page).unwrap().len();
    assert!(bytes < 1_800_000, "{bytes}");
    let Some(dom) = dom(&page, "q=a29998") else { return };
    assert!(dom.contains("Tensors<small>1</small>") && dom.contains("<mark>a29998</mark>"));
    let elements = dom.matches("<div").count() + dom.matches("<span").count();
    assert!(elements < 8000, "{elements}");
    let shot = dir.at("shot.png");
    let taken = format!("--screenshot={}", shot.display());
    browser(&page, "", &[&taken, "--window-size=1280,800"]).unwrap();
    assert!(fs::read(shot).unwrap().starts_with(b"\x89PNG"));
}
