//! The command line and environment of a standalone worker. Whoever starts it does so inside the volunteer.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gleaner_common::units::Bytes;

use super::{SparkError, check_host, shortened};

/// How to start a worker. The script it starts becomes the worker's Java process by `exec`, so the process id stays;
/// the executors are its children, each a process of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCommand {
    /// Where Spark is installed.
    pub spark_home: PathBuf,
    /// Where Java is; `None` takes `JAVA_HOME` or `java` of the environment.
    pub java_home: Option<PathBuf>,
    /// What the master is called: `spark://HOST:PORT`.
    pub master: String,
    /// The name or address it listens on and is known by. Decommissioning goes by it, so no two workers share one.
    pub host: String,
    /// Cores it offers.
    pub cores: u32,
    /// Memory it offers to executors, in whole mebibytes. Its own process needs `daemon_memory` beyond that.
    pub memory: Bytes,
    /// Heap of the worker's own process.
    pub daemon_memory: Bytes,
    /// Port of its web interface; 0 takes a free one.
    pub web_ui_port: u16,
    /// Folder of the executors' logs and jars.
    pub work_dir: PathBuf,
    /// Folder of shuffle data and spilled blocks.
    pub local_dir: PathBuf,
    /// More Spark settings of the worker itself (`spark.worker.…`); those it cannot do without are added.
    pub settings: BTreeMap<String, String>,
}

impl WorkerCommand {
    /// Checks everything that Spark would misunderstand or refuse only after it was started.
    ///
    /// # Errors
    /// [`SparkError::Argument`] for the first value that cannot be used.
    pub fn check(&self) -> Result<(), SparkError> {
        let refuse = |what, value: &str, problem| Err(SparkError::Argument { what, value: shortened(value), problem });
        check_host(&self.host)?;
        let address = self.master.strip_prefix("spark://").unwrap_or_default();
        if address.is_empty() || !address.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refuse("the master", &self.master, "it must be spark://HOST:PORT");
        }
        if self.cores == 0 {
            return refuse("the number of cores", "0", "a worker needs one at least");
        }
        for (what, memory) in [("the memory", self.memory), ("the daemon's memory", self.daemon_memory)] {
            if mebibytes(memory) == 0 {
                return refuse(what, &memory.to_string(), "it must be one mebibyte at least");
            }
        }
        for folder in [&self.spark_home, &self.work_dir, &self.local_dir].into_iter().chain(&self.java_home) {
            let text = folder.to_string_lossy();
            if !folder.is_absolute() {
                return refuse("the folder", &text, "it must be absolute");
            }
            // SPARK_LOCAL_DIRS is a list with commas.
            if text.contains([',', '\0', '\n']) {
                return refuse("the folder", &text, "it must be without commas and line ends");
            }
        }
        for (key, value) in &self.settings {
            let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
            if !key.starts_with("spark.") || !key.bytes().all(plain) || key.contains('=') {
                return refuse("the setting", key, "it must begin with spark. and be without spaces, quotes and =");
            }
            if !value.bytes().all(plain) {
                return refuse("the setting's value", value, "it must be without spaces, quotes and backslashes");
            }
        }
        Ok(())
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> PathBuf {
        self.spark_home.join("bin/spark-class")
    }

    /// Its arguments.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let text = |value: &str| OsString::from(value);
        let folder = |path: &Path| path.as_os_str().to_owned();
        vec![
            text("org.apache.spark.deploy.worker.Worker"),
            text("--host"),
            text(&self.host),
            text("--port"),
            text("0"),
            text("--webui-port"),
            text(&self.web_ui_port.to_string()),
            text("--cores"),
            text(&self.cores.to_string()),
            text("--memory"),
            text(&format!("{}M", mebibytes(self.memory))),
            text("--work-dir"),
            folder(&self.work_dir),
            text(&self.master),
        ]
    }

    /// Variables to set beside those that are there. Executors inherit them.
    #[must_use]
    pub fn environment(&self) -> BTreeMap<&'static str, OsString> {
        let mut settings = self.settings.clone();
        // Without it the worker and its executors do not let go gracefully on a signal.
        settings.entry("spark.decommission.enabled".to_owned()).or_insert_with(|| "true".to_owned());
        // Volunteers come and go; what ended applications leave on their disks goes by itself.
        settings.entry("spark.worker.cleanup.enabled".to_owned()).or_insert_with(|| "true".to_owned());
        let settings: Vec<_> = settings.iter().map(|(key, value)| format!("-D{key}={value}")).collect();
        let mut environment = BTreeMap::from([
            ("SPARK_HOME", self.spark_home.clone().into_os_string()),
            ("SPARK_LOCAL_IP", OsString::from(self.host.trim_matches(['[', ']']))),
            ("SPARK_LOCAL_DIRS", self.local_dir.clone().into_os_string()),
            ("SPARK_WORKER_DIR", self.work_dir.clone().into_os_string()),
            ("SPARK_WORKER_OPTS", OsString::from(settings.join(" "))),
            ("SPARK_DAEMON_MEMORY", OsString::from(format!("{}m", mebibytes(self.daemon_memory)))),
            // One thread collects garbage well enough for a worker, whose own heap is small.
            ("SPARK_DAEMON_JAVA_OPTS", OsString::from("-XX:+UseSerialGC")),
            ("SPARK_NO_DAEMONIZE", OsString::from("1")),
        ]);
        if let Some(java_home) = &self.java_home {
            environment.insert("JAVA_HOME", java_home.clone().into_os_string());
        }
        environment
    }
}

const fn mebibytes(memory: Bytes) -> u64 {
    memory.0 >> 20
}
