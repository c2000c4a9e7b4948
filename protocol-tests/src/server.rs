//! A server process of our own: started on a free port, killed, started again on the same data.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;

use crate::admin;
use crate::reshaper::Reshaper;

/// The environment variable that names a broker to test instead of our own server.
pub const BOOTSTRAP_VARIABLE: &str = "PROTOCOL_TESTS_BOOTSTRAP";

/// The environment variable that names the server binary to test.
pub const BINARY_VARIABLE: &str = "PROTOCOL_TESTS_SERVER";

/// The environment variable that has the shards of all servers split and merged all the time, and
/// names the file that gets a line for each such reshape.
pub const RESHAPER_VARIABLE: &str = "PROTOCOL_TESTS_RESHAPER";

/// The foreign broker that this run tests, if the environment names one.
pub fn foreign() -> Option<String> {
    std::env::var(BOOTSTRAP_VARIABLE)
        .ok()
        .filter(|value| !value.is_empty())
}

/// The address to test: the foreign broker, or one server process for the whole run.
pub fn bootstrap() -> String {
    static SHARED: OnceLock<Server> = OnceLock::new();
    foreign().unwrap_or_else(|| SHARED.get_or_init(Server::start).address())
}

/// A running server and its data directory, which goes when the value does.
///
/// The process dies with the test process, however that ends: a small shell holds the other end of a
/// pipe and kills the server when the pipe closes.
pub struct Server {
    settings: Vec<String>,
    port: u16,
    admin: u16,
    /// Its shards change only if the test changes them.
    calm: bool,
    /// Reshapes that the background reshaper had done, over all starts.
    reshapes: Arc<AtomicU64>,
    home: TempDir,
    running: Option<Running>,
}

struct Running {
    process: Child,
    guard: Child,
    reshaping: Option<Reshaping>,
}

/// Ends the reshaper of a server when dropped.
struct Reshaping(Arc<AtomicBool>);

impl Drop for Reshaping {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Server {
    /// Starts a server on an empty data directory.
    pub fn start() -> Server {
        Server::with_settings(&[])
    }

    /// Starts a server on an empty data directory, with more settings as `key=value`.
    pub fn with_settings(settings: &[&str]) -> Server {
        Server::on_port(free_port(), settings)
    }

    /// Starts a server whose shards no background reshaper touches, for tests of shards and files.
    pub fn calm(settings: &[&str]) -> Server {
        let mut server = Server::stopped(settings);
        server.calm = true;
        server.start_again();
        server
    }

    /// Starts a server that clients reach at `port`, whichever `listeners` the settings name.
    pub fn on_port(port: u16, settings: &[&str]) -> Server {
        let mut server = Server::stopped(settings);
        server.port = port;
        server.start_again();
        server
    }

    /// A server that does not run yet; its data directory can be filled first.
    pub fn stopped(settings: &[&str]) -> Server {
        Server {
            settings: settings.iter().map(|s| s.to_string()).collect(),
            port: free_port(),
            admin: admin_port(settings),
            calm: false,
            reshapes: Arc::default(),
            home: tempfile::Builder::new()
                .prefix("shardgate-test-")
                .tempdir()
                .expect("temp dir"),
            running: None,
        }
    }

    /// Adds a setting as `key=value` from the next start on.
    pub fn set(&mut self, setting: &str) {
        self.settings.push(setting.to_owned());
    }

    /// `host:port`, the same before and after a restart.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Where the server keeps its data.
    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Everything the server has printed since the first start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The id of the running process.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("the server runs").process.id()
    }

    /// Ends the process as power loss would end it, as far as a process can tell.
    pub fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            stop(running);
        }
    }

    /// Asks the process to end (SIGTERM) and waits until it has; returns whether it ended well.
    pub fn terminate(&mut self) -> bool {
        if self.running.is_none() {
            return true;
        }
        self.signal("TERM");
        let deadline = Instant::now() + crate::PATIENCE;
        while Instant::now() < deadline {
            match self.exit_code() {
                Some(code) => return code == 0,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        self.kill();
        false
    }

    /// Sends a signal to the running process.
    pub fn signal(&self, name: &str) {
        signal(name, self.pid());
    }

    /// How the process ended, -1 if by a signal; `None` while it runs.
    pub fn exit_code(&mut self) -> Option<i32> {
        let running = self.running.as_mut().expect("the server was not stopped");
        let status = running.process.try_wait().expect("wait for the server")?;
        self.kill();
        Some(status.code().unwrap_or(-1))
    }

    /// Starts the process and kills it that soon, most likely while it recovers.
    pub fn start_and_kill(&mut self, after: Duration) {
        assert!(self.running.is_none(), "the server is running already");
        let process = self.spawn();
        let guard = guard_of(process.id());
        std::thread::sleep(after);
        stop(Running {
            process,
            guard,
            reshaping: None,
        });
    }

    fn spawn(&self) -> Child {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("log");
        let mut command = Command::new(binary());
        command
            .arg("--set")
            .arg(format!("listeners=PLAINTEXT://127.0.0.1:{}", self.port));
        command
            .arg("--set")
            .arg(format!("log.dirs={}", self.data().display()));
        command
            .arg("--set")
            .arg(format!("admin.port={}", self.admin));
        for setting in &self.settings {
            command.arg("--set").arg(setting);
        }
        command.current_dir(self.home.path()).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("log")).stderr(log);
        command.spawn().expect("start the server")
    }

    /// Starts the process on the data that is there and waits until it takes connections.
    pub fn start_again(&mut self) {
        assert!(self.running.is_none(), "the server is running already");
        let mut process = self.spawn();
        let guard = guard_of(process.id());
        let deadline = Instant::now() + crate::PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Some(status) = process.try_wait().expect("wait for the server") {
                panic!(
                    "the server ended at its start ({status}); it printed:\n{}",
                    self.log()
                );
            }
            assert!(
                Instant::now() < deadline,
                "the server does not listen:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        self.running = Some(Running {
            process,
            guard,
            reshaping: self.reshaper_log().map(|log| self.reshape(&log)),
        });
    }

    /// The log of the background reshaper, if there is to be one.
    fn reshaper_log(&self) -> Option<PathBuf> {
        let path = std::env::var_os(RESHAPER_VARIABLE).filter(|path| !path.is_empty())?;
        (!self.calm).then(|| path.into())
    }

    /// Waits until the background reshaper, if there is one, has done so many more reshapes.
    pub fn await_reshapes(&self, more: u64) {
        if self.reshaper_log().is_some() {
            let before = self.reshapes.load(Ordering::Relaxed);
            crate::wait_for("shards are reshaped", || {
                let now = self.reshapes.load(Ordering::Relaxed);
                (now >= before + more).then_some(())
            });
        }
    }

    /// Splits and merges the shards of all topics in the background.
    fn reshape(&self, log: &Path) -> Reshaping {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let log = File::options().create(true).append(true).open(log);
        let log = log.expect("the reshaper's log");
        let mut reshaper = self.reshaper(log);
        std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                reshaper.round();
            }
        });
        Reshaping(stop)
    }

    /// A reshaper of this server, which also works after restarts.
    pub fn reshaper(&self, log: impl std::io::Write + Send + 'static) -> Reshaper {
        let (address, seed) = (self.admin_address(), u64::from(self.port));
        let reshaper = Reshaper::new(&address, &self.data(), seed, &self.reshapes, log);
        let mut settings = self.settings.iter().rev();
        let directories = settings.find_map(|setting| setting.strip_prefix("log.dirs="));
        let directories = directories.unwrap_or_default().split(',');
        reshaper.with_directories(directories.map(str::to_owned).collect())
    }

    /// `host:port` of the admin port, the same before and after a restart.
    pub fn admin_address(&self) -> String {
        format!("127.0.0.1:{}", self.admin)
    }

    /// Resident memory of the process in KiB, or 0 where `/proc` does not tell.
    pub fn resident_kib(&self) -> u64 {
        let Ok(status) = File::open(format!("/proc/{}/status", self.pid())) else {
            return 0;
        };
        BufReader::new(status)
            .lines()
            .map_while(Result::ok)
            .find_map(|line| {
                line.strip_prefix("VmRSS:")?
                    .trim()
                    .split(' ')
                    .next()?
                    .parse()
                    .ok()
            })
            .unwrap_or(0)
    }

    /// What the admin port answers to a GET: the status and the body.
    pub fn http(&self, path: &str) -> (u16, String) {
        admin::get(&self.admin_address(), path).expect("an answer")
    }

    /// One of the server's metrics, without the prefix.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.http("/metrics");
        let line = text.lines().find_map(|line| {
            let rest = line.strip_prefix("shardgate_")?.strip_prefix(name)?;
            rest.strip_prefix(' ')?.parse().ok()
        });
        line.unwrap_or_else(|| panic!("no metric {name}"))
    }

    /// What `shardgate verify` says about the directories of a server that does not run: its
    /// exit code and everything it printed.
    pub fn verify(&self, more: &[&str]) -> (i32, String) {
        let mut arguments = Vec::new();
        let dirs = self.settings.iter().rev();
        if let Some(dirs) = dirs.into_iter().find(|s| s.starts_with("log.dirs=")) {
            arguments.extend(["--set", dirs.as_str()]);
        }
        arguments.extend(more);
        verify(&self.data(), &arguments)
    }

    /// Files that the process has open, or 0 where `/proc` does not tell.
    pub fn open_files(&self) -> u64 {
        let folder = fs::read_dir(format!("/proc/{}/fd", self.pid()));
        folder.map_or(0, |entries| entries.count() as u64)
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("server.log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the server printed:\n{}", self.log());
        }
        self.kill();
    }
}

/// What `shardgate verify` says about a directory: its exit code and everything it printed.
pub fn verify(data: &Path, more: &[&str]) -> (i32, String) {
    let mut command = Command::new(binary());
    command.arg("verify").arg("--set");
    command.arg(format!("log.dirs={}", data.display()));
    // Relative names are those of the server.
    command.current_dir(data.parent().unwrap_or(data));
    let output = command.args(more).output().expect("run verify");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.code().unwrap_or(-1), text)
}

fn stop(mut running: Running) {
    drop(running.reshaping.take());
    // The guard goes first: it must never meet a process id that is free again.
    let _ = running.guard.kill();
    let _ = running.guard.wait();
    let _ = running.process.kill();
    let _ = running.process.wait();
}

fn guard_of(pid: u32) -> Child {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("cat >/dev/null; kill -9 {pid} 2>/dev/null"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().expect("start the guard")
}

fn signal(name: &str, pid: u32) {
    let done = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "no signal reached process {pid}"
    );
}

fn admin_port(settings: &[&str]) -> u16 {
    let set = settings.iter().rev();
    let set = set.filter_map(|setting| setting.strip_prefix("admin.port=")?.parse().ok());
    set.into_iter().next().unwrap_or_else(free_port)
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    socket
        .local_addr()
        .expect("a bound socket has an address")
        .port()
}

/// The server binary: the one the environment names, else the one beside this program,
/// built anew when a source file is younger.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Ok(path) = std::env::var(BINARY_VARIABLE) {
            return PathBuf::from(path);
        }
        // target/PROFILE/deps/TEST, or target/PROFILE/PROGRAM.
        let program = std::env::current_exe().expect("the path of this program");
        let folder = program.parent().expect("a folder");
        let profile = match folder.ends_with("deps") {
            true => folder.parent().expect("target/PROFILE"),
            false => folder,
        };
        let binary = profile.join("shardgate");
        if !is_current(&binary) {
            build(profile);
        }
        binary
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_path_buf()
}

fn is_current(binary: &Path) -> bool {
    let Ok(built) = fs::metadata(binary).and_then(|data| data.modified()) else {
        return false;
    };
    let younger = |path: &Path| modified(path).is_none_or(|time| time > built);
    let root = root();
    !younger(&root.join("Cargo.toml"))
        && !younger(&root.join("Cargo.lock"))
        && files_below(&root.join("src"))
            .iter()
            .all(|file| !younger(file))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("read the sources").flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => found.push(path),
            }
        }
    }
    found
}

fn build(profile: &Path) {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--package", "shardgate", "--bin", "shardgate"]);
    if profile.file_name().is_some_and(|name| name == "release") {
        command.arg("--release");
    }
    command
        .arg("--target-dir")
        .arg(profile.parent().expect("target"));
    let output = command.current_dir(root()).output().expect("run cargo");
    let _ = std::io::stderr().write_all(&output.stderr);
    assert!(
        output.status.success(),
        "the server does not build; see above"
    );
}
