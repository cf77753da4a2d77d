//! A real browser without a window: Chromium, told what to do through a pipe (`--remote-debugging-pipe`).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest time that one command may take: a browser that begins on a busy machine is slow.
const WAIT: Duration = Duration::from_secs(60);
/// Names that Chromium has.
const NAMES: [&str; 2] = ["chromium", "chromium-browser"];

/// A browser with one page; it ends when this is dropped.
pub struct Browser {
    child: Child,
    to: std::fs::File,
    from: Receiver<Value>,
    next: u64,
    session: Value,
    /// Addresses that the page asked for.
    pub asked: Vec<String>,
    /// What went wrong in the page: exceptions, refused by its policy.
    pub faults: Vec<String>,
    _dir: tempfile::TempDir,
}

/// The browser's program; `None` after a line that says so.
pub fn program_or_skip(name: &str) -> Option<&'static str> {
    let found = NAMES.into_iter().find(|program| {
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        output.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        eprintln!("skipped: {name} needs chromium");
    }
    found
}

impl Browser {
    /// Starts it with an empty page.
    pub fn start(program: &str) -> Browser {
        let dir = tempfile::tempdir().unwrap();
        let (to, from) = (dir.path().join("to"), dir.path().join("from"));
        for fifo in [&to, &from] {
            nix::unistd::mkfifo(fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        // Opened for both, a fifo does not wait for its other end.
        let both = |fifo: &Path| std::fs::File::options().read(true).write(true).open(fifo).unwrap();
        let (to_file, from_file) = (both(&to), both(&from));
        let child = Command::new("sh")
            .args(["-c", r#"to=$1 from=$2; shift 2; exec "$@" 3<"$to" 4>"$from""#, "sh"])
            .args([&to, &from])
            .arg(program)
            .args(["--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"])
            // A container has neither the rights for the sandbox nor a large /dev/shm; the page is weir's own.
            .args(["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync", "--no-proxy-server"])
            .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
            .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
            .env("HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let messages = BufReader::new(from_file).split(0);
            for message in messages.map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            child,
            to: to_file,
            from: receiver,
            next: 0,
            session: Value::Null,
            asked: Vec::new(),
            faults: Vec::new(),
            _dir: dir,
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        browser.session = browser.call("Target.attachToTarget", &attach)["sessionId"].clone();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Sends a command and waits for its answer.
    pub fn call(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        let end = Instant::now() + WAIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let message = self.from.recv_timeout(left).unwrap_or_else(|e| {
                let gone = self.child.try_wait().unwrap();
                panic!(
                    "{method}: {}, browser: {gone:?}",
                    if e == RecvTimeoutError::Timeout { "no answer" } else { "end" }
                )
            });
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Network.requestWillBeSent" => {
                self.asked.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            "Runtime.exceptionThrown" => self.faults.push(params["exceptionDetails"].to_string()),
            // A stream that ends with its server is no fault of the page.
            "Log.entryAdded"
                if params["entry"]["level"] == "error" && params["entry"]["source"] != "network" =>
            {
                self.faults.push(params["entry"].to_string());
            }
            _ => {}
        }
    }

    /// Value of an expression in the page.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Goes to an address; does not wait until it is loaded.
    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({"url": url}));
    }

    /// Waits until `expression` is true; the time it took. Panics after `limit`.
    pub fn until(&mut self, expression: &str, limit: Duration) -> Duration {
        let begin = Instant::now();
        // While a page is being replaced there is nothing to ask.
        let safe = format!("(() => {{ try {{ return !!({expression}); }} catch {{ return false; }} }})()");
        while self.eval(&safe) != json!(true) {
            let text =
                || "document.body ? document.body.dataset.state + ' ' + document.body.innerText : 'no page'";
            if begin.elapsed() > limit {
                let state = self.eval(text());
                panic!("not within {limit:?}: {expression}; the page: {state}; faults: {:?}", self.faults);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        begin.elapsed()
    }

    /// Sets width and height in CSS pixels, and whether the system is dark.
    pub fn look(&mut self, width: u32, height: u32, dark: bool) {
        let mobile = width < 600;
        let scale = if mobile { 2 } else { 1 };
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile});
        self.call("Emulation.setDeviceMetricsOverride", &metrics);
        self.call("Emulation.setScrollbarsHidden", &json!({"hidden": true}));
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &features);
    }

    /// The whole page as PNG, base64.
    pub fn shot(&mut self) -> String {
        let params = json!({"format": "png", "captureBeyondViewport": true});
        self.call("Page.captureScreenshot", &params)["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The group is the browser with the processes that it started, and nothing else.
        let group = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = self.child.wait();
    }
}
