//! The command line: what can be asked, with an example each.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use exo_api::MemberRole;

use crate::shapes::SHAPES;

/// What was typed; ends the process with what is wrong with it.
pub fn parse() -> Cli {
    let mut command = with_negative_values(Cli::command());
    let matches = command.get_matches_mut();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// A number that a request may have.
fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "a number from 0 is needed, such as 0.7".to_owned())
}

/// A number below zero is the value of its option: what is refused then is the number, with the range.
fn with_negative_values(command: clap::Command) -> clap::Command {
    let takes = |arg: &clap::Arg| arg.get_action().takes_values() && !arg.is_positional();
    let command = command.mut_args(|arg| if takes(&arg) { arg.allow_negative_numbers(true) } else { arg });
    command.mut_subcommands(with_negative_values)
}

#[derive(Parser)]
#[command(
    name = "exo",
    version,
    about = "Turns the machines you own into one computer that runs language models",
    after_help = "Examples:\n  exo                          start a node; others on this network find it\n  \
                  exo run demo \"What is 17 + 25?\"   one answer\n  \
                  exo demo                     a cluster of three nodes on this machine, start to end"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub settings: Settings,
}

/// Flags that stand for settings; see `exo config`. `-h` leaves out what few need.
#[derive(Args, Default)]
#[command(next_help_heading = "Settings (`exo config` lists all)")]
pub struct Settings {
    /// Configuration file instead of the one `exo config` names
    #[arg(long, global = true, value_name = "FILE", env = "EXO_CONFIG")]
    pub config: Option<PathBuf>,
    /// Folder for keys, journal and fetched models
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<String>,
    /// Name of this node, for people
    #[arg(long, global = true, hide_short_help = true)]
    name: Option<String>,
    /// Address of API and dashboard
    #[arg(long, global = true, hide_short_help = true, value_name = "ADDR:PORT")]
    api_listen: Option<String>,
    /// Address for other nodes, UDP and TCP; port 0 picks one
    #[arg(long, global = true, hide_short_help = true, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// A node to reach, host:port; may be repeated
    #[arg(long = "peer", global = true, hide_short_help = true, value_name = "HOST:PORT")]
    peers: Vec<String>,
    /// Do not look for nodes by mDNS
    #[arg(long, global = true, hide_short_help = true)]
    no_discovery: bool,
    /// Keep no copies of answers on other nodes: one ends with the node that it was asked of
    #[arg(long, global = true, hide_short_help = true)]
    no_resume: bool,
    /// auto lets nodes join a new cluster for 10 minutes, closed never
    #[arg(long, global = true, hide_short_help = true, value_name = "auto|closed")]
    trust: Option<String>,
    /// What computes: all that is fast and gives the right answers (auto), the processor, or a card through
    /// an interface
    #[arg(long, global = true, hide_short_help = true, value_name = "auto|cpu|cuda|vulkan|metal|dx12")]
    backend: Option<String>,
    /// Which graphics processor: a part of its name; with --backend its number, or several (0,1); with auto a
    /// place (cuda:0)
    #[arg(long, global = true, hide_short_help = true, value_name = "NAME|NUMBER|PLACE")]
    device: Option<String>,
    /// Longest time of one step on a graphics processor, in seconds
    #[arg(long, global = true, hide_short_help = true, value_name = "SECONDS")]
    step_max_s: Option<String>,
    /// Processor threads for models
    #[arg(long, global = true, hide_short_help = true, value_name = "N")]
    threads: Option<String>,
    /// Processor cores to keep to, each worker thread to one of them: 0-3,8
    #[arg(long, global = true, hide_short_help = true, value_name = "LIST")]
    cores: Option<String>,
    /// Part of the time in which the processor computes for models, for example 50%
    #[arg(long, global = true, hide_short_help = true, value_name = "10%..100%")]
    compute_share: Option<String>,
    /// Use weights straight from the model file instead of copying them to faster memory
    #[arg(long, global = true, hide_short_help = true)]
    mmap: bool,
    /// Memory models may take, in MiB
    #[arg(long, global = true, hide_short_help = true, value_name = "MIB")]
    memory_mib: Option<String>,
    /// Disk that stays free when models are fetched, in MiB
    #[arg(long, global = true, hide_short_help = true, value_name = "MIB")]
    disk_reserve_mib: Option<String>,
    /// Disk that fetched models may take together, in MiB
    #[arg(long, global = true, hide_short_help = true, value_name = "MIB")]
    disk_quota_mib: Option<String>,
    /// Tokens whose keys and values a model may hold, over all sequences
    #[arg(long, global = true, hide_short_help = true, value_name = "N")]
    cache_tokens: Option<String>,
    /// How keys and values are stored
    #[arg(long, global = true, hide_short_help = true, value_name = "f32|f16|q8")]
    kv: Option<String>,
    /// How tokens are guessed ahead; changes how fast answers come, never what they are
    #[arg(long, global = true, hide_short_help = true, value_name = "ngram|draft|off")]
    speculate: Option<String>,
    /// A small model of the same tokenizer that guesses ahead: name, file or folder
    #[arg(long, alias = "model-draft", global = true, hide_short_help = true, value_name = "MODEL")]
    draft: Option<String>,
    /// What is logged, as in RUST_LOG
    #[arg(long, global = true, hide_short_help = true, value_name = "FILTER")]
    log: Option<String>,
}

impl Settings {
    /// What is to be logged, where a flag says so.
    pub fn log(&self) -> Option<&str> {
        self.log.as_deref()
    }

    /// The settings given as flags, by name.
    pub fn flags(&self) -> BTreeMap<&'static str, String> {
        let given = [
            ("data_dir", &self.data_dir),
            ("name", &self.name),
            ("api_listen", &self.api_listen),
            ("listen", &self.listen),
            ("trust", &self.trust),
            ("backend", &self.backend),
            ("device", &self.device),
            ("step_max_s", &self.step_max_s),
            ("threads", &self.threads),
            ("cores", &self.cores),
            ("compute_share", &self.compute_share),
            ("memory_mib", &self.memory_mib),
            ("disk_reserve_mib", &self.disk_reserve_mib),
            ("disk_quota_mib", &self.disk_quota_mib),
            ("cache_tokens", &self.cache_tokens),
            ("kv", &self.kv),
            ("speculate", &self.speculate),
            ("draft", &self.draft),
            ("log", &self.log),
        ];
        let mut flags: BTreeMap<_, _> =
            given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        if !self.peers.is_empty() {
            flags.insert("peers", self.peers.join(","));
        }
        if self.no_discovery {
            flags.insert("discovery", "false".to_owned());
        }
        if self.no_resume {
            flags.insert("resume", "false".to_owned());
        }
        if self.mmap {
            flags.insert("mmap", "true".to_owned());
        }
        flags
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Start a node (what `exo` alone does)
    #[command(
        alias = "serve",
        after_help = "Examples:\n  exo start --peer 192.168.1.20:52416\n  \
                            exo start                    computes on the cards that give the right answers, else the processor\n  \
                            exo start --device RTX       on that card, by the backend that is fastest there\n  \
                            exo start --backend cpu      on the processor; asks no driver\n  \
                            EXO_BACKEND=vulkan exo start --device 1   on the second card that Vulkan shows, whatever it is"
    )]
    Start,
    /// Answer a prompt with a model, or chat with it; uses the running node, else starts one for the while
    #[command(
        alias = "chat",
        after_help = "Examples:\n  exo run demo \"Put 9, 3, 7 in order.\"\n  exo run ./model.gguf\n  exo run hf.co/ORG/REPO:Q4_K_M    fetches it first\n  \
                            echo \"What is 2 + 2?\" | exo run demo\n  git diff | exo run demo What changes here?"
    )]
    Run(Run),
    /// Show a cluster of three nodes on this machine: a model split over them, answers streaming
    #[command(
        after_help = "Examples:\n  exo demo\n  exo demo --mixed    one node computes through Vulkan\n  exo demo --mixed cuda   one node computes on an NVIDIA card\n  exo demo --keep     leave the cluster and its API up"
    )]
    Demo(Demo),
    /// Open the page of the running node in the browser, signed in by a link that is good once and for a
    /// minute
    #[command(
        after_help = "Examples:\n  exo open\n  exo open --print       the link alone, for another browser\n  \
                            exo open --sign-out    ends all sessions of browsers\n\n\
                            Where no browser opens, it shows the ssh command that brings the page to a machine that has one."
    )]
    Open(Open),
    /// Show nodes, devices, instances and links of the cluster
    #[command(
        alias = "ps",
        after_help = "Examples:\n  exo status --json | jq .instances\n  exo status --watch      again whenever something changes\n  exo status --requests   what runs and waits here, without its text"
    )]
    Status(Status),
    /// Show what is wrong in the cluster and what to do about it, or silence it for a while
    #[command(
        after_help = "Examples:\n  exo alerts\n  exo alerts --all                                 also what is over, of the last day\n  \
                            exo alerts silence battery_low --for 2h         all alerts of that rule, at this node\n  \
                            exo alerts silence node_lost:aeaqcaibaeaq --for 0   no longer\n\n\
                            What each rule means is in docs/runbook.md. Every node judges by itself from what all report."
    )]
    Alerts(Alerts),
    /// Show the last log lines of all nodes, or of one
    #[command(after_help = "Examples:\n  exo logs --follow\n  exo logs --node attic --level warn\n  \
                            exo logs --request 0f3c…      what every node says of one request (its x-request-id)\n  \
                            exo logs --target exo_cluster --raise trace --follow    more of one part, for ten minutes\n\n\
                            Each node keeps the last 10 MB in memory. Prompts and answers are in no line.")]
    Logs(Logs),
    /// Bring a model from a hub to this machine; goes on where an earlier attempt ended
    #[command(
        after_help = "Examples:\n  exo pull hf.co/ORG/REPO             the largest quantisation that fits the machines that run, else this one\n  \
                            exo pull hf.co/ORG/REPO:Q4_K_M      this one\n  \
                            exo pull hf.co/ORG/REPO@v1.0        of a branch, a tag or a commit\n  \
                            exo pull https://example.org/model-Q8_0.gguf\n  \
                            exo pull --layers hf.co/ORG/REPO   each machine fetches its own layers when it is placed\n\n\
                            HF_TOKEN is the token for gated models, HF_ENDPOINT a mirror, HTTPS_PROXY a proxy; EXO_OFFLINE=1 \
                            fetches nothing."
    )]
    Pull(Pull),
    /// List what the node fetches and how far it is; pause, resume or end a download
    #[command(
        after_help = "Examples:\n  exo pulls\n  exo pulls pause 3\n  exo pulls resume 3\n  exo pulls cancel 3"
    )]
    Pulls {
        #[command(subcommand)]
        action: Option<PullsAction>,
        #[command(flatten)]
        json: Json,
    },
    /// Show what a repository of a hub has: quantisations, sizes, licence; fetches no weights
    #[command(after_help = "Example: exo show hf.co/ORG/REPO")]
    Show(Show),
    /// Search the hub for models
    #[command(after_help = "Example: exo search qwen3 gguf")]
    Search(Search),
    /// Keep a token for gated and private models
    #[command(
        after_help = "Examples:\n  exo login hub                  asks for it\n  exo login hub < token.txt\n  exo login hub --forget\n\n\
                            It is kept in the data folder, readable by you alone, and sent to the hub (HF_ENDPOINT) that it was given for, \
                            nowhere else. HF_TOKEN counts before it, the token file of the hub's own tools after it."
    )]
    Login {
        #[command(subcommand)]
        to: LoginTo,
    },
    /// Fetch what is newer of models from a hub; shows first what changes
    #[command(
        after_help = "Examples:\n  exo update                 shows what is newer of all, and asks\n  exo update MODEL --yes     fetches it without a question\n  \
                            exo update --json          only prints what it would fetch\n\n\
                            The name then means the newer commit. One that runs goes on with what it has; the older commit is called \
                            NAME@COMMIT, and is deleted once nothing uses it. What was pulled by its commit does not move."
    )]
    Update(Update),
    /// Delete downloads that were never finished, and what came whole and is no model of the list
    #[command(after_help = "Example: exo prune")]
    Prune(Json),
    /// List models, make one known, keep one on this disk, or forget one
    #[command(
        alias = "list",
        after_help = "Examples:\n  exo models\n  exo models --found    what other programs have on this disk\n  exo models add ~/models/llama-3.2-1b-Q8_0.gguf\n  \
                            exo models keep llama-3.2-1b-Q8_0    on this disk, however full that is\n  \
                            exo models remove llama-3.2-1b-Q8_0"
    )]
    Models {
        #[command(subcommand)]
        action: Option<ModelsAction>,
        /// List what other programs have on this disk, ready to run without a download
        #[arg(long)]
        found: bool,
        #[command(flatten)]
        json: Json,
    },
    /// List processors and graphics cards of this machine, what each can do, and why one is not used
    #[command(after_help = "Examples:\n  exo devices\n  exo devices --json | jq '.[] | .name, .reason'")]
    Devices(Devices),
    /// List which models fit these machines together, how fast they would answer, and what would make the
    /// others fit
    #[command(
        after_help = "Examples:\n  exo fits\n  exo fits qwen3-8b\n  exo fits hf.co/ORG/REPO\n  exo fits demo    a model that is here\n  exo fits --context 32768    for long texts\n  exo fits --cluster home.toml"
    )]
    Fits(Fits),
    /// Place a model on the cluster and load it
    #[command(
        after_help = "Examples:\n  exo place demo --nodes 2 --context 512 --kv q8\n  exo place demo --slots 8 --replace\n\n\
                            --replace unloads what is placed first: answers that run end. `exo replan` moves a model while it answers."
    )]
    Place(Place),
    /// Show how a model would be placed and how fast it would be, on this cluster or on one that a file
    /// describes; nothing is loaded
    #[command(
        after_help = "Examples:\n  exo plan demo\n  exo plan llama-3.1-8b --slots 8 --objective throughput\n  \
                            exo plan demo --pin desktop/cuda-0=5 --exclude laptop\n  \
                            exo plan --shape llama-70b --type q4_k_m                       a model that is not here\n  \
                            exo plan --shape llama-70b --type q4_k_m --cluster lab.toml    no node, no file\n  \
                            exo plan --save-cluster lab.toml                               what was measured here"
    )]
    Plan(Plan),
    /// Ask again where a placed model should be: what a move gains and costs, and the move if it is worth it
    #[command(after_help = "Example: exo replan llama-3.1-8b")]
    Replan(Replan),
    /// Unload a placed model; answers of it that run end
    #[command(after_help = "Examples:\n  exo unload demo\n  exo unload demo --yes    without a question\n\n\
                            While answers run, or where no machine has its file any more, a terminal is asked first; a script is not.")]
    Unload {
        /// Instance id (as in `exo status`), or any name or id of its model
        instance: String,
        /// Do it without asking
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Remove a node from the cluster, for good
    #[command(after_help = "Example: exo remove old-laptop")]
    Remove {
        /// Name or id of the node
        node: String,
        #[command(flatten)]
        json: Json,
    },
    /// Move the model layers of a node to other nodes without a pause in answers, and place none there
    #[command(
        after_help = "Examples:\n  exo drain old-laptop           before it is needed for something else, or updated\n  \
                            exo drain old-laptop --undo    it may have layers again\n\n\
                            It stays a member and answers requests. Its layers are loaded elsewhere while it serves on; where nothing has \
                            room for them they stay, and `exo drain` says so. A node that ends by Ctrl-C or SIGTERM does the same for as \
                            long as 30 s; a second Ctrl-C ends it at once."
    )]
    Drain {
        /// Name or id of the node
        node: String,
        /// Allow layers there again
        #[arg(long)]
        undo: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Let a node in that asks to join, or refuse it; without a name list who asks
    #[command(
        after_help = "Examples:\n  exo admit                       who asks, with the four words that its screen shows, too\n  \
                            exo admit new-laptop\n  exo admit new-laptop --refuse   neither shown nor let in for an hour, but by a code\n  \
                            exo admit --anyone 5            whoever is near and asks this node in the next five minutes\n  \
                            exo admit --nobody              ends that, and the first ten minutes of a cluster\n\n\
                            Run it on an admin's node."
    )]
    Admit(Admit),
    /// Show a code that lets another machine in, from anywhere, also when the join window is shut
    #[command(
        after_help = "Examples:\n  exo invite                       nine digits for one machine, good for five minutes and three tries\n  \
                            exo invite --uses 5 --hours 24   a token for five machines without a terminal (EXO_JOIN_TOKEN)\n  \
                            exo invite --uses 5 --json | jq -r .token\n\n\
                            Whoever knows the code gets in: read it aloud or send it as you would a password.\nRun it on an admin's node."
    )]
    Invite {
        /// A token for so many machines, instead of digits for one
        #[arg(long, value_name = "N")]
        uses: Option<u32>,
        /// A token that is good for so long
        #[arg(long, value_name = "HOURS")]
        hours: Option<u32>,
        #[command(flatten)]
        json: Json,
    },
    /// Join the cluster where `exo invite` has shown a code
    #[command(after_help = "Examples:\n  exo join 123-456-789\n  \
                            exo join 123-456-789 --peer 203.0.113.7:52416      where networks are routed, or multicast is dropped\n\n\
                            The node of this machine must run. A node that starts with EXO_JOIN_TOKEN set to a token of `exo invite --uses N` \
                            joins by itself.")]
    Join {
        /// Nine digits, a token, or the text of the QR code that `exo invite` shows
        code: String,
    },
    /// Say who may let nodes in and put them out
    #[command(
        after_help = "Examples:\n  exo admin add desktop       a second admin, before the first one is lost\n  \
                            exo admin remove desktop    it stays a member\n\n\
                            Run it on an admin's node. The node that founded the cluster is its first admin; `exo status` names them. \
                            When all admins are lost, `exo leave` on each machine makes it new, and they form a cluster again."
    )]
    Admin {
        #[command(subcommand)]
        action: AdminAction,
    },
    /// End the node that runs on this machine, as Ctrl-C at it does
    #[command(
        after_help = "Examples:\n  exo stop\n  exo stop --data-dir ./second    one of several nodes of this machine\n\n\
                            What other members depend on is loaded elsewhere first, for as long as 30 s. It stays a member: `exo` starts \
                            it again."
    )]
    Stop,
    /// Make this node new again: it forgets its cluster and its key, and keeps its models
    #[command(after_help = "Examples:\n  exo stop && exo leave\n  exo leave --yes    without a question\n\n\
                            For a node that was removed, whose cluster has lost all its admins, or that is to join another one. A \
                            node that runs is ended first (`exo stop`).\nOther members show it as left until `exo remove NODE` on \
                            an admin there; one that was removed is not shown.")]
    Leave {
        /// Do it without asking
        #[arg(long)]
        yes: bool,
    },
    /// Measure a model on this machine: tokens per second, and what part of the machine's limits that is
    #[command(
        after_help = "Examples:\n  exo bench demo\n  exo bench ./model.gguf -p 512,128 -n 64 -d 0,4096 --threads 1,2\n  \
                            exo bench ./model.gguf -p 0 -b 1,4,8      several streams at once\n  \
                            exo bench ./model.gguf --kv f16,q8 --threads 2\n  \
                            exo bench ./model.gguf --json > bench.json\n  \
                            exo bench --shape llama-8b --type q4_0 --backend cuda    random weights, no file\n\n\
                            Each sample stands beside a probe taken at the same moment: decode beside the machine's read \
                            bandwidth (2 MiB pages), prefill beside the rate of its multiply-add instruction; on a graphics \
                            processor, decode beside what a copy within its memory reads and writes."
    )]
    Bench(Bench),
    /// Make a smaller GGUF file of a model, or a GGUF file of a Hugging Face folder
    #[command(
        after_help = "Examples:\n  exo quantize ./Llama-3.2-1B q4_k_m                 from a Hugging Face folder\n  \
                            exo quantize ./model-F16.gguf q8_0 -o ./small.gguf\n  \
                            exo quantize ./model-Q8_0.gguf q4_0 --requantize    rounds twice; from F16 is better\n\n\
                            Bits for each weight, of a model with large matrices: f16 and bf16 16, q8_0 8.5, q6_k 6.6, \
                            q5_k_m 5.7, q4_k_m 4.9, q4_0 4.5. The file is named after model and type, and loads in \
                            llama.cpp too. `exo perplexity` shows what a type costs."
    )]
    Quantize(Quantize),
    /// Measure how well a model predicts a text, as llama-perplexity does
    #[command(after_help = "Examples:\n  exo perplexity ./model.gguf --text wiki.test.raw\n  \
                            exo perplexity ./model.gguf --text wiki.test.raw --context 1024 --chunks 20 --kv q8\n\n\
                            The text is cut into chunks of --context tokens; in the second half of each, every token is \
                            scored after those before it. 1 is certainty. Two models or types compare on the same text \
                            and context only; llama-perplexity's numbers (with the same -c) compare too.")]
    Perplexity(Perplexity),
    /// Check what works on this machine and what does not, with the next step
    #[command(
        after_help = "Examples:\n  exo doctor\n  exo doctor --cluster                 every machine of the cluster\n  \
                      exo doctor --report                  a file to send to somebody who helps\n  \
                      exo doctor --report trouble.tar.gz\n\n\
                      A report has these checks, the settings, and of a running node what it sees of the cluster, its \
                      measurements, alerts, and the last log lines of all nodes. Keys, names and addresses are replaced."
    )]
    Doctor(Doctor),
    /// Compute one shard on a graphics processor for the node that started this process
    #[command(hide = true)]
    Worker,
    /// Show every setting and where its value comes from
    #[command(after_help = "Example: EXO_THREADS=2 exo config")]
    Config(Json),
}

impl Command {
    /// Whether it may run a model here; the others ask a node, or look at files.
    pub fn computes(&self) -> bool {
        matches!(
            self,
            Self::Start
                | Self::Run(_)
                | Self::Demo(_)
                | Self::Bench(_)
                | Self::Perplexity(_)
                | Self::Quantize(_)
                | Self::Devices(_)
        )
    }
}

#[derive(Args, Default, Clone, Copy)]
pub struct Json {
    /// Print JSON, for scripts: what is printed without it is broken into lines for people
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Doctor {
    /// Write all that helps to find a fault into one file, without keys, names and addresses
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "json")]
    pub report: Option<Option<PathBuf>>,
    /// Have every machine of the cluster looked over by its own node, through the node that runs here
    #[arg(long, conflicts_with = "report")]
    pub cluster: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Status {
    /// Show the requests of this node's clients instead: what each does or waits for, and for how long
    #[arg(long)]
    pub requests: bool,
    /// Show the links between nodes instead: round trip, jitter and bandwidth, each with how often and how
    /// long ago it was measured
    #[arg(long, conflicts_with = "requests")]
    pub links: bool,
    /// Show it again whenever something changes, until Ctrl-C; with --json, each event on a line
    #[arg(long, conflicts_with_all = ["requests", "links"])]
    pub watch: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Alerts {
    #[command(subcommand)]
    pub action: Option<AlertsAction>,
    /// Show what is over, too, of the last day
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Subcommand)]
pub enum AlertsAction {
    /// Silence an alert, or all of a rule, for a while at this node
    #[command(after_help = "Example: exo alerts silence battery_low --for 2h")]
    Silence {
        /// Id of an alert, or of a rule
        alert: String,
        /// How long: 90s, 30m, 2h, 1d; 0 ends a silence
        #[arg(long = "for", value_name = "TIME", default_value = "1h")]
        time: String,
    },
}

#[derive(Args)]
pub struct Logs {
    /// Of this node only: its name or id
    #[arg(long)]
    pub node: Option<String>,
    /// Of this level and above: trace, debug, info, warn, error
    #[arg(long)]
    pub level: Option<String>,
    /// Of parts of the program that begin so: exo_server
    #[arg(long)]
    pub target: Option<String>,
    /// Of the request with this id
    #[arg(long, value_name = "ID")]
    pub request: Option<String>,
    /// So many lines, the last ones
    #[arg(long, short = 'n', default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub lines: u32,
    /// Go on with what comes
    #[arg(long, short)]
    pub follow: bool,
    /// Have this node keep more of `--target` for ten minutes: trace, debug, info, warn, error
    #[arg(long, value_name = "LEVEL", requires = "target")]
    pub raise: Option<String>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Open {
    /// Print the link and open nothing
    #[arg(long)]
    pub print: bool,
    /// End all sessions of browsers instead
    #[arg(long, conflicts_with = "print")]
    pub sign_out: bool,
}

#[derive(Args)]
pub struct Run {
    /// Name of a model (`exo models`), a GGUF file or Hugging Face folder, or a reference
    /// (hf.co/ORG/REPO:QUANTISATION)
    pub model: String,
    /// The prompt; what is piped in stands behind it. Without either a chat at a prompt
    pub prompt: Vec<String>,
    /// What the model is told first
    #[arg(long)]
    pub system: Option<String>,
    /// Longest answer in tokens
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u32>,
    /// 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.7, value_parser = temperature)]
    pub temperature: f32,
    /// The same seed gives the same answer
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print the answer as JSON when it is complete
    #[arg(long)]
    pub json: bool,
    /// Print the answer to a terminal as the model gave it, control characters and escape sequences included.
    /// Without it they are shown as � there; files and pipes always get the answer as it is
    #[arg(long)]
    pub raw: bool,
}

#[derive(Args)]
pub struct Pull {
    /// `hf.co/ORG/REPO[:QUANTISATION][@REVISION]`, a name of Ollama's registry as `qwen3:8b`,
    /// `oci://HOST/NAME:TAG`, or the address of a GGUF file
    pub reference: String,
    /// Most bytes a second, in MiB
    #[arg(long, value_name = "MIB")]
    pub limit_rate: Option<f64>,
    /// Ranges of a file at once; as many as help, up to this
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub ranges: u8,
    /// Only read the heads of its files: each machine fetches its own layers when the model is placed. Needs
    /// a running node
    #[arg(long, conflicts_with = "limit_rate")]
    pub layers: bool,
    /// Leave the download to the running node and return; `exo pulls` shows how far it is
    #[arg(long, short)]
    pub detach: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Admit {
    /// Name or id of the node, as in `exo status`
    #[arg(conflicts_with_all = ["anyone", "nobody"])]
    pub node: Option<String>,
    /// Let nobody of that key ask for an hour
    #[arg(long, requires = "node")]
    pub refuse: bool,
    /// Let in who is near and asks, without a question, for so many minutes
    #[arg(long, value_name = "MINUTES", num_args = 0..=1, default_missing_value = "10", conflicts_with = "nobody",
          value_parser = clap::value_parser!(u32).range(1..=60))]
    pub anyone: Option<u32>,
    /// Let nobody in without a question any more
    #[arg(long)]
    pub nobody: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Update {
    /// Models by name or id; all that came from a hub or a registry without one
    pub models: Vec<String>,
    /// Fetch without a question
    #[arg(long, short, conflicts_with = "json")]
    pub yes: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Subcommand)]
pub enum LoginTo {
    /// The hub that models are pulled from
    #[command(after_help = "Examples:\n  exo login hub < token.txt\n  exo login hub --forget")]
    Hub {
        /// Delete the token that is kept
        #[arg(long)]
        forget: bool,
    },
}

#[derive(Subcommand)]
pub enum PullsAction {
    /// Stop fetching; what came stays
    #[command(after_help = "Example: exo pulls pause 3")]
    Pause {
        /// Its id in `exo pulls`
        id: String,
    },
    /// Go on from what came, also after an error
    #[command(after_help = "Example: exo pulls resume 3")]
    Resume {
        /// Its id in `exo pulls`
        id: String,
    },
    /// End it and take it from the list; what came stays until `exo prune`
    #[command(after_help = "Example: exo pulls cancel 3")]
    Cancel {
        /// Its id in `exo pulls`
        id: String,
    },
}

#[derive(Args)]
pub struct Show {
    /// `hf.co/ORG/REPO[@REVISION]`
    pub reference: String,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Search {
    /// What to search for
    #[arg(required = true)]
    pub text: Vec<String>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Fits {
    /// One model: a name of the list, one that the cluster has, or `hf.co/ORG/REPO[:QUANTISATION][@REVISION]`
    pub reference: Option<String>,
    /// On the cluster that this file describes, as `exo plan --save-cluster` writes it; no node is asked
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// Longest text at once, prompt and answer, in tokens
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Devices {
    /// Print JSON, for scripts: what is printed without it is broken into lines for people
    #[arg(long)]
    pub json: bool,
    /// Also measure what handing a decode step to each graphics processor costs, with the model that the
    /// binary carries
    #[arg(long)]
    pub steps: bool,
    /// End the quarantine of devices that were lost too often, forget what they answered wrongly, and ask
    /// them again
    #[arg(long)]
    pub retry: bool,
}

#[derive(Args)]
pub struct Demo {
    /// Leave the cluster and its API up until Ctrl-C
    #[arg(long)]
    pub keep: bool,
    /// Let the second node compute through this backend, the others on the processor
    #[arg(long, value_name = "BACKEND", num_args = 0..=1, default_missing_value = "vulkan")]
    pub mixed: Option<String>,
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=8))]
    pub nodes: u32,
}

#[derive(Args)]
pub struct Bounds {
    /// Longest sequence in tokens, prompt and answer
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u32>,
    /// Sequences that may run at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: Option<u32>,
    /// Split over at least this many devices, whichever nodes they are of
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: Option<u32>,
    /// A device that must take part, now and whenever it is placed again; with how many layers, or which
    #[arg(long, value_name = "NODE[/DEVICE][=LAYERS]")]
    pub pin: Vec<String>,
    /// A node or device that must not
    #[arg(long, value_name = "NODE[/DEVICE]")]
    pub exclude: Vec<String>,
}

#[derive(Args)]
pub struct Place {
    /// Name of a model (`exo models`), a GGUF file or Hugging Face folder, or a reference
    /// (hf.co/ORG/REPO:QUANTISATION)
    pub model: String,
    #[command(flatten)]
    pub bounds: Bounds,
    /// Sequences that do run at once: what throughput is computed for
    #[arg(long, value_name = "N", requires = "objective")]
    pub streams: Option<u32>,
    /// What the placement should be good at: latency (one request, the default) or throughput (all streams)
    #[arg(long, value_name = "OBJECTIVE", value_parser = ["latency", "throughput"])]
    pub objective: Option<String>,
    /// Unload the model first if it is placed with other numbers
    #[arg(long)]
    pub replace: bool,
    /// With --replace: do not ask first, although answers run
    #[arg(long, requires = "replace")]
    pub yes: bool,
    /// Return as soon as the plan stands instead of waiting for the load
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Replan {
    /// Any name of a placed model, or its instance (`exo status`)
    pub model: String,
    /// Only show what a move would gain and cost
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Plan {
    /// Name of a model (`exo models`); with --cluster a GGUF file, Hugging Face folder, `demo`, or such a
    /// name
    #[arg(required_unless_present_any = ["shape", "save_cluster"], conflicts_with = "shape")]
    pub model: Option<String>,
    /// Instead of a model: the shape of one; without --cluster on the running cluster, or on this machine
    /// where no node runs
    #[arg(long, value_name = "SHAPE", value_parser = clap::builder::PossibleValuesParser::new(SHAPES.iter().map(|s| s.name)))]
    pub shape: Option<String>,
    /// How its weights are stored: f32, bf16, f16, q8_0, q6_k, q5_k_m, q4_k_m or q4_0
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m", requires = "shape")]
    pub stored: exo_quant::Target,
    /// A file that describes devices and links, instead of the running cluster
    #[arg(long, value_name = "FILE", conflicts_with = "save_cluster")]
    pub cluster: Option<PathBuf>,
    /// Write the running cluster, as it was measured, to such a file
    #[arg(long, value_name = "FILE")]
    pub save_cluster: Option<PathBuf>,
    #[command(flatten)]
    pub bounds: Bounds,
    /// Sequences that do run at once
    #[arg(long, value_name = "N")]
    pub streams: Option<u32>,
    /// What the plan should be good at: latency (one request) or throughput (all streams)
    #[arg(long, value_name = "OBJECTIVE", default_value = "latency", value_parser = ["latency", "throughput"])]
    pub objective: String,
    /// Tokens of a prompt
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt: Option<u32>,
    /// Tokens of an answer
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub answer: Option<u32>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Bench {
    /// GGUF file, Hugging Face folder, `demo`, or the name of a model (`exo models`)
    #[arg(required_unless_present = "shape", conflicts_with = "shape")]
    pub model: Option<String>,
    /// Instead of a model: random weights in the shape of one, made in memory
    #[arg(long, value_name = "SHAPE", value_parser = clap::builder::PossibleValuesParser::new(SHAPES.iter().map(|s| s.name)))]
    pub shape: Option<String>,
    /// How those weights are stored: f32, bf16, f16, q8_0, q6_k, q5_k_m, q4_k_m or q4_0
    #[arg(long = "type", value_name = "TYPE", default_value = "q8_0", requires = "shape")]
    pub stored: exo_quant::Target,
    /// The same seed makes the same weights
    #[arg(long, value_name = "N", default_value_t = 1, requires = "shape")]
    pub seed: u64,
    /// Lengths of prompt to prefill, comma between; 0 for none
    #[arg(short = 'p', long = "n-prompt", value_name = "TOKENS", default_value = "512")]
    pub prompt: String,
    /// Numbers of tokens to generate; 0 for none
    #[arg(short = 'n', long = "n-gen", value_name = "TOKENS", default_value = "64")]
    pub generate: String,
    /// Tokens already in the context when a test starts
    #[arg(short = 'd', long = "n-depth", value_name = "TOKENS", default_value = "0")]
    pub depth: String,
    /// Sequences that generate at once, in the same steps
    #[arg(short = 'b', long = "batch", value_name = "STREAMS", default_value = "1")]
    pub batch: String,
    /// Samples of each test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Print JSON, for scripts: what is printed without it is broken into lines for people
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print tables in Markdown
    #[arg(long)]
    markdown: bool,
}

impl Bench {
    /// What the flags ask for.
    pub fn format(&self) -> Format {
        match (self.json, self.markdown) {
            (true, _) => Format::Json,
            (_, true) => Format::Markdown,
            _ => Format::Terminal,
        }
    }
}

#[derive(Args)]
pub struct Quantize {
    /// GGUF file, Hugging Face folder, `demo`, or the name of a model (`exo models`)
    pub source: String,
    /// f32, bf16, f16, q8_0, q6_k, q5_k_m, q4_k_m or q4_0
    #[arg(value_name = "TYPE")]
    pub target: exo_quant::Target,
    /// The new file; without it NAME-TYPE.gguf in the current folder
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long)]
    pub force: bool,
    /// Take a source that is quantised already
    #[arg(long)]
    pub requantize: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args)]
pub struct Perplexity {
    /// GGUF file, Hugging Face folder, `demo`, or the name of a model (`exo models`)
    pub model: String,
    /// The text, UTF-8
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Tokens of a chunk; without it 512, or less if the model was made for less
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u32>,
    /// Stop after so many chunks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: Option<u32>,
    /// Take control tokens written out in the text for those tokens; llama-perplexity does not
    #[arg(long)]
    pub special: bool,
    #[command(flatten)]
    pub json: Json,
}

/// How `exo bench` prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Terminal,
    Markdown,
    Json,
}

/// What `exo admin` does.
#[derive(Subcommand)]
pub enum AdminAction {
    /// Make a member an admin
    #[command(after_help = "Example: exo admin add desktop")]
    Add {
        /// Name or id of the node
        node: String,
        #[command(flatten)]
        json: Json,
    },
    /// Make an admin a plain member
    #[command(after_help = "Example: exo admin remove desktop")]
    Remove {
        /// Name or id of the node
        node: String,
        #[command(flatten)]
        json: Json,
    },
}

impl AdminAction {
    /// Who, what it is to be, and how that is printed.
    pub fn parts(&self) -> (&str, MemberRole, Json) {
        match self {
            Self::Add { node, json } => (node, MemberRole::Admin, *json),
            Self::Remove { node, json } => (node, MemberRole::Worker, *json),
        }
    }
}

#[derive(Subcommand)]
pub enum ModelsAction {
    /// Make a GGUF file or a Hugging Face folder known
    #[command(
        after_help = "Examples:\n  exo models add ~/models/llama-3.2-1b-Q8_0.gguf\n  exo models add ~/b/model.gguf --name mine    another name than the file's"
    )]
    Add {
        /// The file or folder
        path: PathBuf,
        /// What to call it, in place of the file's name
        #[arg(long)]
        name: Option<String>,
    },
    /// Compare a model that each machine has layers of with what its hub promised
    #[command(after_help = "Example: exo models check tiny-Q8_0")]
    Check {
        /// Its name or id
        model: String,
    },
    /// Keep a model on this machine's disk, however full that is
    #[command(
        after_help = "Examples:\n  exo models keep tiny-Q8_0\n  exo models keep tiny-Q8_0 --undo    it may go again when room is needed"
    )]
    Keep {
        /// Its name or id
        model: String,
        /// Let it go again when room is needed
        #[arg(long)]
        undo: bool,
    },
    /// Forget a model; files that you added stay on disk
    #[command(after_help = "Example: exo models remove llama-3.2-1b-Q8_0")]
    Remove {
        /// Its name or id
        model: String,
    },
}
