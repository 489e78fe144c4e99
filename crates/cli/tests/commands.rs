//! Commands as a user types them: help, settings, one answer, and errors that say what to do.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{
    self, Node, SOON, Start, exo, finish, flat, good, is_alive, json_of, known, must_refuse, run, skip,
    stderr, stdout, wait_for,
};

#[test]
fn every_command_has_help_with_an_example() {
    let listed = |command: &[&str]| -> Vec<String> {
        let help = stdout(&run(&[command, &["--help"]].concat()));
        let rows = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let rows = rows
            .take_while(|line| !line.is_empty())
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        rows.filter_map(|row| row.split_whitespace().next())
            .filter(|name| *name != "help")
            .map(str::to_owned)
            .collect()
    };
    let mut seen = 0;
    for command in listed(&[]) {
        let within = listed(&[command.as_str()]).into_iter().map(|action| vec![command.clone(), action]);
        for words in std::iter::once(vec![command.clone()]).chain(within) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let output = run(&[&words[..], &["--help"]].concat());
            assert!(
                output.status.success() && stdout(&output).contains("Example"),
                "{words:?}: {}",
                stdout(&output)
            );
            seen += 1;
        }
    }
    assert!(seen > 35, "{seen} commands");
    assert!(stdout(&run(&["--help"])).contains("exo demo"));
    let wrong = run(&["dmeo"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("demo"), "a slip is answered with what was meant: {}", stderr(&wrong));
}

#[test]
fn a_variable_that_is_misspelt_is_named_where_settings_are_read() {
    let wrong = "EXO_API_LISTN is not a setting of exo; did you mean EXO_API_LISTEN?";
    let shown = finish(exo(&["config"]).env("EXO_API_LISTN", "127.0.0.1:1"), SOON);
    assert!(shown.status.success() && stderr(&shown).contains(wrong), "{}", stderr(&shown));
    let silent = run(&["config"]);
    assert!(!stderr(&silent).contains("not a setting"), "{}", stderr(&silent));
    let env = vec![("EXO_API_LISTN", "127.0.0.1:1".into())];
    let node = Node::start(Start { env, ..Start::alone("misspelt", &[]) });
    wait_for("the warning", SOON, || node.log().contains(wrong).then_some(()));
}

#[test]
fn words_of_other_programs_are_taken() {
    for (word, command) in [("serve", "start"), ("chat", "run"), ("ps", "status"), ("list", "models")] {
        let shown = stdout(&run(&[word, "--help"]));
        assert!(shown.contains(&format!("Usage: exo {command}")), "{word}: {shown}");
    }
}

#[test]
fn a_number_below_zero_is_refused_with_what_is_allowed() {
    for (args, allowed) in [
        (&["place", "demo", "--context", "-5"][..], "-5 is not in"),
        (&["place", "demo", "--slots", "-1"], "-1 is not in"),
        (&["run", "demo", "x", "--max-tokens", "-1"], "-1 is not in"),
    ] {
        let refused = run(args);
        let text = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(text.contains(allowed) && !text.contains("tip:"), "{args:?}: {text}");
    }
}

#[test]
fn a_model_that_is_none_is_answered_with_those_that_there_are() {
    let node = Node::alone();
    let commands: [&[&str]; 4] = [&["place"], &["plan"], &["models", "remove"], &["models", "check"]];
    for command in commands {
        let ask = |model: &str| stderr(&node.exo(&[command, &[model]].concat()));
        let text = ask("nosuch");
        assert!(text.contains("no model `nosuch` is known here; there are: demo"), "{command:?}: {text}");
        assert!(text.contains("hint: `exo models` lists the models"), "{command:?}: {text}");
        let text = ask("dem");
        assert!(text.contains("did you mean demo?"), "{command:?}: {text}");
    }
}

#[test]
fn a_check_of_a_model_that_is_of_no_hub_says_that_there_is_nothing_to_compare() {
    let checked = Node::alone().exo(&["models", "check", "demo"]);
    let text = stderr(&checked);
    assert!(text.contains("it is not from a hub: there is nothing to compare it with"), "{text}");
}

#[test]
fn a_wrong_log_filter_says_where_it_came_from() {
    let output = finish(exo(&["config"]).env("EXO_LOG", "exo=loud"), SOON);
    must_refuse(output, "setting `log` is `exo=loud` (from environment EXO_LOG): ");
}

#[test]
fn config_shows_where_each_value_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("exo.toml");
    std::fs::write(&file, "slots = 7\napi_keys = [\"very-secret\"]\n").unwrap();
    let mut command = exo(&["config", "--json", "--name", "box", "--config", file.to_str().unwrap()]);
    let output = finish(command.env("EXO_THREADS", "3"), SOON);
    let all: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&all["name"]["value"], &all["name"]["source"]), (&"box".into(), &"flag".into()));
    assert_eq!(
        (&all["threads"]["value"], &all["threads"]["source"]),
        (&"3".into(), &"environment EXO_THREADS".into())
    );
    assert_eq!(
        (&all["slots"]["value"], &all["slots"]["source"]),
        (&"7".into(), &file.to_str().unwrap().into())
    );
    assert!(!stdout(&output).contains("very-secret"), "a key is not shown");
    std::fs::write(&file, "slotz = 7\n").unwrap();
    must_refuse(run(&["config", "--config", file.to_str().unwrap()]), "`slotz` is not a setting");
}

#[test]
fn config_shows_a_value_that_a_node_would_refuse_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("exo.toml");
    for (line, name) in [("threads = \"x\"", "threads"), ("resume = \"perhaps\"", "resume")] {
        std::fs::write(&file, line).unwrap();
        let output = run(&["config", "--config", file.to_str().unwrap()]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("setting `{name}` is `")), "{text}");
        assert!(stdout(&output).contains("data_dir"), "all are shown all the same");
    }
}

#[test]
fn a_demo_without_a_temporary_folder_says_which_variable_chooses_it() {
    let nowhere = "/does/not/exist";
    let mut command = exo(&["demo"]);
    command.env("TMPDIR", nowhere).env("TMP", nowhere).env("TEMP", nowhere);
    let text = stderr(&finish(&mut command, SOON));
    assert!(text.contains("in /does/not/exist, which TMPDIR"), "{text}");
}

#[test]
fn one_prompt_is_answered_without_a_running_node_and_nothing_stays() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let (prompt, answer) = &known()[0];
    let args = ["run", "demo", prompt, "--temperature", "0", "--no-discovery", "--listen", "127.0.0.1:0"];
    let output = finish(exo(&args).arg("--data-dir").arg(&data), SOON);
    assert_eq!(stdout(&output).trim(), answer, "{}", stderr(&output));
    assert!(!data.join("api.json").exists(), "the node that answered has left");
}

#[test]
fn every_instruction_set_gives_the_same_answer() {
    let (prompt, answer) = &known()[0];
    let args = ["run", "demo", prompt, "--temperature", "0", "--no-discovery", "--listen", "127.0.0.1:0"];
    let with = |isa: &str| {
        let folder = tempfile::tempdir().unwrap();
        finish(exo(&args).arg("--data-dir").arg(folder.path()).env("EXO_CPU_ISA", isa), SOON)
    };
    for isa in exo_backend_cpu::Isa::ALL {
        let output = with(isa.name());
        if isa.is_available() {
            assert_eq!(stdout(&output).trim(), answer, "{}: {}", isa.name(), stderr(&output));
        } else {
            let refusal = format!("this processor does not have {}", isa.name());
            assert!(stderr(&output).contains(&refusal), "{}", stderr(&output));
            skip(isa.name(), "this processor does not have it");
        }
    }
    let wrong = stderr(&with("avx10"));
    assert!(wrong.contains("`cpu_isa` is `avx10` (from environment EXO_CPU_ISA)"), "{wrong}");
}

#[test]
fn a_running_node_answers_commands() {
    let node = Node::alone();
    let (prompt, answer) = &known()[1];
    assert_eq!(stdout(&node.exo(&["run", "demo", prompt, "--temperature", "0"])).trim(), answer);
    // The view is made ten times a second.
    wait_for("the status to show the instance", SOON, || {
        let status = stdout(&node.exo(&["status"]));
        assert!(status.contains("solo (this)"), "{status}");
        (status.contains("demo") && status.contains("ready")).then_some(())
    });
    let models = stdout(&node.exo(&["models"]));
    assert!(models.contains("demo") && models.contains("llama"), "{models}");
    good(node.exo(&["unload", "demo"]));
    let placed = node.exo(&["place", "demo", "--context", "128", "--slots", "2", "--json"]);
    let placed: serde_json::Value = serde_json::from_str(&stdout(&placed)).unwrap();
    assert_eq!((&placed["context_tokens"], &placed["slots"]), (&128.into(), &2.into()));
    let for_scripts =
        |args: &[&str]| -> serde_json::Value { json_of(node.exo(&[args, &["--json"]].concat())) };
    let unloaded = serde_json::json!([{"id": placed["id"], "model": "demo", "ended_answers": 0}]);
    assert_eq!(for_scripts(&["unload", "demo"]), unloaded);
    assert_eq!(for_scripts(&["prune"]), serde_json::json!({"files": 0, "bytes": 0}));
    let invited = for_scripts(&["invite", "--uses", "2"]);
    let [code, token, link] = ["code", "token", "link"].map(|key| invited[key].as_str().unwrap());
    assert!(token.starts_with(&format!("{code}@")) && link == format!("exo://join/{token}"), "{invited}");
}

/// Before the node has looked at its disk again, and after.
#[test]
fn a_model_whose_file_has_changed_is_called_that_by_the_node_that_has_it() {
    let node = Node::alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.gguf");
    support::another_model(&path);
    good(node.exo(&["models", "add", path.to_str().unwrap()]));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.push(0);
    std::fs::write(&path, bytes).unwrap();
    let refuse = || {
        let answer = node.exo(&["run", "mine", "Hello"]);
        let text = flat(&stderr(&answer));
        let wanted = "mine.gguf has changed since it was added: `exo models add /";
        assert!(!answer.status.success() && text.contains(wanted), "{text}");
        assert!(!text.contains("memory") && !text.contains("start exo again"), "{text}");
    };
    refuse();
    wait_for("the file to be missed", SOON, || {
        let models = node.get("/exo/v1/models");
        (!models.as_array().unwrap().iter().any(|model| model["name"] == "mine")).then_some(())
    });
    refuse();
}

#[test]
fn a_model_of_the_users_is_added_used_and_forgotten_and_its_file_stays() {
    let node = Node::alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.gguf");
    support::another_model(&path);
    let added = node.exo(&["models", "add", path.to_str().unwrap()]);
    assert!(added.status.success() && stdout(&added).contains("added mine"), "{}", stderr(&added));
    support::answers_as(&node, "mine");
    let models = node.get("/exo/v1/models");
    let mine = models.as_array().unwrap().iter().find(|model| model["name"] == "mine").unwrap();
    let id = mine["id"].as_str().unwrap();
    support::answers_as(&node, &id[..12]);
    assert_eq!(node.ask(&id[..7], "Hello").status, 404, "too easily somebody's name");
    must_refuse(node.exo(&["models", "remove", "mine"]), "unload it first");
    assert!(node.exo(&["unload", &id[..8]]).status.success());
    wait_for("the model to be forgotten", SOON, || {
        node.exo(&["models", "remove", "mine"]).status.success().then_some(())
    });
    assert_eq!(node.ask("mine", "Hello").status, 404);
    assert!(path.exists(), "a file the user added is the user's");
}

#[test]
fn the_doctor_tells_what_works_and_what_the_next_step_is() {
    let node = Node::alone();
    let output = node.exo(&["doctor", "--json", "--peer", "127.0.0.1:1"]);
    let checks: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let verdict = |name: &str| {
        let check = checks.as_array().unwrap().iter().find(|c| c["check"] == name);
        check.unwrap_or_else(|| panic!("no check `{name}`: {checks:#}"))["verdict"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(output.status.success());
    for name in ["data folder", "processor", "memory", "node", "cluster", "coordinator", "demo model"] {
        assert_eq!(verdict(name), "ok", "{name}");
    }
    assert_eq!((verdict("graphics").as_str(), verdict("peer").as_str()), ("note", "warning"));
    assert!(stdout(&output).contains("no driver was asked, as the backend is cpu"), "{}", stdout(&output));
    let port = checks.as_array().unwrap().iter().find(|c| c["check"] == "API port").unwrap();
    assert!(port["found"].as_str().unwrap().contains("127.0.0.1:0"), "as the node was started: {port}");
}

#[test]
fn the_doctor_fails_when_something_essential_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("not-a-folder");
    std::fs::write(&file, "").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let output = run(&["doctor", "--data-dir", file.to_str().unwrap(), "--api-listen", &port]);
    let text = flat(&stdout(&output));
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("is not a folder") && text.contains("cannot be opened"), "{text}");
    assert!(text.contains("next: end the program that has it"), "{text}");
}

#[test]
fn the_doctor_finds_a_configuration_file_that_cannot_be_read_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("exo.toml"));
    std::fs::write(&file, "threads = = 3\n").unwrap();
    let (data, named) = (data.to_str().unwrap(), file.to_str().unwrap());
    let args = ["doctor", "--json", "--no-discovery", "--data-dir", data, "--config", named];
    let output = run(&args);
    let checks: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((output.status.code(), &checks[0]["check"]), (Some(1), &"configuration".into()), "{checks}");
    let found = checks[0]["found"].as_str().unwrap();
    assert!(found.contains("is not TOML: line 1"), "{checks}");
    assert!(checks.as_array().unwrap().iter().any(|check| check["check"] == "processor"), "{checks}");
}

#[test]
fn commands_without_a_node_say_how_to_start_one() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["status", "open"] {
        let output = run(&[command, "--data-dir", folder.path().to_str().unwrap()]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains("no exo node is running") && text.contains("hint: start one with `exo`"),
            "{text}"
        );
    }
}

#[test]
fn a_port_in_use_ends_the_start_before_it_touches_anything() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let output = run(&["start", "--data-dir", data.to_str().unwrap(), "--api-listen", &port]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("cannot open the API on {port}")), "{}", stderr(&output));
    assert!(stderr(&output).contains("hint: another program"), "{}", stderr(&output));
    assert!(!data.exists());
}

#[test]
fn two_nodes_do_not_share_a_data_folder() {
    let node = Node::alone();
    let data = node.data_dir.to_str().unwrap();
    let second =
        run(&["start", "--data-dir", data, "--api-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    assert_eq!(second.status.code(), Some(1));
    let text = stderr(&second);
    assert!(
        text.contains("already in use by another exo") && text.contains(&node.pid().to_string()),
        "{text}"
    );
    assert!(text.contains(&format!("its API at http://{}", node.address)), "{text}");
    assert!(text.contains("hint: ") && text.contains("all commands use that node"), "{text}");
    support::answers(&node);
}

#[test]
fn a_data_folder_that_cannot_be_used_is_named() {
    // A file in its place: permissions stop nobody who is root.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    std::fs::write(&file, "").unwrap();
    let output = run(&["start", "--data-dir", file.to_str().unwrap(), "--api-listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(file.to_str().unwrap()), "{}", stderr(&output));
}

#[test]
#[cfg(unix)]
fn a_data_folder_without_write_permission_is_named() {
    use std::os::unix::fs::PermissionsExt;
    if rustix::process::geteuid().is_root() {
        return support::skip("a_data_folder_without_write_permission_is_named", "root may write anywhere");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let data = folder.path().join("data");
    let output = run(&["start", "--data-dir", data.to_str().unwrap(), "--api-listen", "127.0.0.1:0"]);
    assert!(
        stderr(&output).contains("Permission denied") && stderr(&output).contains("hint: "),
        "{}",
        stderr(&output)
    );
}

#[test]
#[cfg(unix)]
fn of_another_users_data_folder_no_command_says_that_no_node_runs_there() {
    use std::os::unix::fs::PermissionsExt;
    if rustix::process::geteuid().is_root() {
        let name = "of_another_users_data_folder_no_command_says_that_no_node_runs_there";
        return support::skip(name, "root may look anywhere");
    }
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o000)).unwrap();
    for command in [&["status"][..], &["stop"], &["leave", "--yes"]] {
        let output = run(&[command, &["--data-dir", data.to_str().unwrap()]].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {}{text}", stdout(&output));
        assert!(text.contains("Permission denied") && text.contains("hint: "), "{command:?}: {text}");
    }
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn an_open_api_needs_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let args = [
        "start",
        "--data-dir",
        data.to_str().unwrap(),
        "--api-listen",
        "0.0.0.0:0",
        "--listen",
        "127.0.0.1:0",
    ];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("set `api_keys`"), "{}", stderr(&output));
}

#[test]
#[cfg(unix)]
fn a_node_ends_cleanly_on_either_signal() {
    for signal in ["-TERM", "-INT"] {
        let mut node = Node::alone();
        node.place("demo", 1);
        let (pid, began) = (node.pid(), Instant::now());
        let status = node.signal(signal);
        assert!(status.success(), "{signal}: {status}\n{}", node.log());
        assert!(began.elapsed() < Duration::from_secs(5), "{signal} took {:?}", began.elapsed());
        assert!(!is_alive(pid) && !node.data_dir.join("api.json").exists());
        let again = Node::start_in(&node.data_dir, Start::alone("alone", &[]));
        let members = again.get("/exo/v1/members");
        assert_eq!(members.as_array().unwrap().len(), 1, "the same cluster as before: {members}");
    }
}

#[test]
fn a_node_is_ready_within_a_second_of_its_start() {
    let mut fastest = Duration::MAX;
    // The best of three: a busy test machine only ever makes it slower.
    for _ in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let began = Instant::now();
        let node = Node::start_in(&folder.path().join("data"), Start::alone("quick", &[]));
        assert_eq!(node.get("/health")["status"], "ok");
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
}

#[test]
#[cfg(unix)]
fn a_node_that_is_stopped_is_there_and_silent() {
    let node = Node::alone();
    // The last two do without a node where there is none.
    let commands: [&[&str]; 3] = [&["status"], &["prune"], &["pull", "--detach", "hf.co/org/repo"]];
    support::send("-STOP", node.pid());
    let outputs = commands.map(|command| node.exo(command));
    support::send("-CONT", node.pid());
    for (command, output) in commands.into_iter().zip(outputs) {
        let text = stderr(&output);
        assert!(!output.status.success(), "{command:?}");
        let silent = format!("(process {}) does not answer within 3 s", node.pid());
        assert!(text.contains(&silent) && text.contains("kill -CONT"), "{command:?}: {text}");
    }
    assert!(node.exo(&["status"]).status.success());
}

#[test]
#[cfg(target_os = "linux")]
fn output_that_could_not_be_written_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut child = exo(&["config"]).stdout(full).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{text}");
    assert!(text.contains("the output could not be written"), "{text}");
}

/// The exit code and what it says of a command that goes on until something ends it, with this output.
#[cfg(unix)]
fn endless(node: &Node, args: &[&str], output: Stdio) -> (Option<i32>, String) {
    let mut command = exo(args);
    command.arg("--data-dir").arg(&node.data_dir).stdout(output).stderr(Stdio::piped());
    let mut child = support::Killed(command.spawn().unwrap());
    let ended = wait_for(&format!("the end of {args:?}"), SOON, || child.0.try_wait().unwrap());
    let mut text = String::new();
    child.0.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
    (ended.code(), text)
}

#[test]
#[cfg(target_os = "linux")]
fn a_command_that_goes_on_printing_ends_when_its_output_cannot_be_written() {
    let node = Node::alone();
    for args in [["status", "--watch"], ["logs", "--follow"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, text) = endless(&node, &args, full.into());
        assert_eq!(code, Some(1), "{args:?}: {text}");
        assert!(text.contains("the output could not be written"), "{args:?}: {text}");
    }
}

#[test]
#[cfg(unix)]
fn a_command_that_goes_on_printing_ends_quietly_when_nobody_reads_on() {
    let node = Node::alone();
    // The second one has nothing to print.
    let commands: [&[&str]; 3] =
        [&["status", "--watch"], &["logs", "--follow", "--target", "no_such_target"], &["logs", "--follow"]];
    for args in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, text) = endless(&node, args, writer.into());
        assert_eq!(code, Some(0), "{args:?}: {text}");
        assert!(!text.contains("error"), "{args:?}: {text}");
    }
}

/// As behind `2>&1 | head`, which has read enough.
#[test]
#[cfg(unix)]
fn a_closed_standard_error_does_not_end_a_command_otherwise() {
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let code = |args: &[&str]| exo(args).stdout(closed()).stderr(closed()).status().unwrap().code();
    assert_eq!(code(&["config"]), Some(0));
    assert_eq!(code(&["start", "--peer", "bogus", "--data-dir", "/nonexistent/never"]), Some(1));
    // A node that writes a log starts all the same.
    let folder = tempfile::tempdir().unwrap();
    let args = ["start", "--no-discovery", "--api-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let mut command = exo(&args);
    command.args(["--log", "debug", "--data-dir"]).arg(folder.path());
    let mut node = support::Killed(command.stdout(closed()).stderr(closed()).spawn().unwrap());
    wait_for("the node's API", SOON, || {
        assert_eq!(node.0.try_wait().unwrap(), None);
        folder.path().join("api.json").exists().then_some(())
    });
}

#[test]
fn names_and_addresses_that_cannot_be_are_refused_before_anything_starts() {
    for (flags, why) in [
        (["--name", ""], "a name needs a character"),
        (["--peer", "bogus"], "`bogus` is not an address; write HOST:PORT"),
        (["--peer", "desk:0"], "write HOST:PORT"),
    ] {
        let output = run(&["start", flags[0], flags[1], "--data-dir", "/nonexistent/never"]);
        let text = stderr(&output);
        assert!(!output.status.success() && text.contains(why), "{flags:?}: {text}");
    }
}

/// Whoever asks any node finds the same list: a client that chooses by context or by date does not know which
/// node has the file.
#[test]
fn models_of_another_node_are_shown_with_what_they_are() {
    let nodes = support::cluster("models-of-others", &["holder", "asker"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("another.gguf");
    support::another_model(&path);
    good(nodes[0].exo(&["models", "add", path.to_str().unwrap()]));
    let shown = |node: &Node| -> Option<serde_json::Value> {
        let models = node.get("/exo/v1/models");
        let found = models.as_array()?.iter().find(|model| model["name"].as_str() == Some("another"))?;
        (found["architecture"] != "").then(|| found.clone())
    };
    let own = shown(&nodes[0]).unwrap();
    // A member that did not answer is asked again after 30 s.
    let others = wait_for("the other's list", SOON + Duration::from_secs(40), || shown(&nodes[1]));
    assert_eq!((&others["path"], &others["nodes"]), (&serde_json::Value::Null, &own["nodes"]));
    for what in [
        "architecture",
        "format",
        "dtypes",
        "weight_bytes",
        "layers",
        "context_tokens_max",
        "chat",
        "tools",
        "added_unix_s",
    ] {
        assert_eq!(others[what], own[what], "{what}: {others:#}");
    }
    let tags = nodes[1].get("/api/tags");
    assert!(
        tags["models"].as_array().unwrap().iter().all(|model| model["modified_at"].is_string()),
        "{tags:#}"
    );
}

#[test]
fn what_begins_with_a_slash_at_the_prompt_is_a_command_and_nothing_of_it_is_sent() {
    let node = Node::alone();
    let line = format!("'{}' run demo --data-dir '{}'", support::EXO, node.data_dir.display());
    let mut at_terminal = support::at_terminal(&line);
    let mut child = at_terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut typed, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let said = Arc::<Mutex<Vec<u8>>>::default();
    let reader = std::thread::spawn({
        let said = said.clone();
        move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                said.lock().unwrap().extend(&bytes[..count]);
            }
        }
    });
    let text = || flat(&String::from_utf8_lossy(&said.lock().unwrap()));
    // What is typed before the prompt is there may be lost.
    for (typed_line, answer) in [
        ("", "Type a message"),
        ("/set temperature 1\n", "/set is no command, and the line was not sent"),
        ("/system Speak as a pirate.\n", "the system prompt is set"),
        ("/system\n", "the system prompt is: Speak as a pirate."),
        ("/system clear\n", "the system prompt is gone"),
        ("/system\n", "there is no system prompt; /system TEXT gives one"),
    ] {
        typed.write_all(typed_line.as_bytes()).unwrap();
        wait_for(answer, SOON, || text().contains(answer).then_some(()));
        std::thread::park_timeout(Duration::from_millis(500));
    }
    typed.write_all(b"/bye\n").unwrap();
    let ended = wait_for("its end", SOON, || child.try_wait().unwrap());
    reader.join().unwrap();
    assert!(ended.success(), "{}", text());
    assert_eq!(node.get("/exo/v1/requests/recent"), serde_json::json!([]), "nothing was asked");
}

#[test]
fn a_terminal_is_asked_before_answers_end_and_a_script_is_not() {
    let node = Node::start(Start::alone("asked", &["--compute-share", "10%"]));
    let folder = tempfile::tempdir().unwrap();
    let typed = |command: &str, answer: &str| {
        let path = folder.path().join("typed");
        std::fs::write(&path, answer).unwrap();
        let line = format!("'{}' {command} --data-dir '{}'", support::EXO, node.data_dir.display());
        let mut at_terminal = support::at_terminal(&line);
        finish(at_terminal.stdin(std::fs::File::open(&path).unwrap()), SOON)
    };
    let long = serde_json::json!({
        "model": "demo", "prompt": "Once upon a time", "max_tokens": 3500, "ignore_eos": true, "stream": true,
    });
    let run_two = |id: &str| {
        let begin = |_| node.send("POST", "/v1/completions", Some(long.to_string()));
        let streams = [0, 1].map(begin);
        wait_for("two answers", SOON, || (node.instance(id)?["load"]["running"] == 2).then_some(()));
        streams
    };
    let id = node.place("demo", 1)["id"].as_str().unwrap().to_owned();
    let _streams = run_two(&id);
    for (command, question) in [
        ("unload demo", "Unload demo? 2 answers that run end [y/N]"),
        ("place demo --slots 2 --replace", "Replace demo if it differs? 2 answers that run end [y/N]"),
    ] {
        let refused = typed(command, "n\n");
        let text = stdout(&refused);
        assert!(!refused.status.success() && text.contains(question), "{text}");
        assert!(node.instance(&id).is_some(), "{text}");
    }
    let agreed = typed("place demo --slots 2 --replace", "y\n");
    assert!(agreed.status.success(), "{}", stdout(&agreed));
    let id = node.get("/exo/v1/cluster")["instances"][0]["id"].as_str().unwrap().to_owned();
    let _streams = run_two(&id);
    let unasked = typed("place demo --slots 3 --replace --yes", "");
    assert!(unasked.status.success() && !stdout(&unasked).contains("[y/N]"), "{}", stdout(&unasked));
    let id = node.get("/exo/v1/cluster")["instances"][0]["id"].as_str().unwrap().to_owned();
    let _streams = run_two(&id);
    let script = node.exo(&["unload", "demo"]);
    assert!(
        stdout(&script).contains("2 answers that ran have ended"),
        "{}{}",
        stdout(&script),
        stderr(&script)
    );
}
