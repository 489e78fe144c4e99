//! Which devices `exo devices` shows where `--backend` and `--device` are given: those that they would make a
//! node take.

use exo_accelerators::report::Row;
use exo_accelerators::{AUTO, BackendSurvey, is_place};

use crate::config::Config;
use crate::errors::CommandError;

/// What the two settings name.
#[derive(Clone, Default, Debug)]
pub struct Filter {
    /// `None` for all.
    backend: Option<String>,
    device: Option<String>,
}

impl Filter {
    /// From the command line. A file or a variable says what nodes take, not what is to be seen; a device is
    /// one of its backend.
    pub fn of_flags(config: &Config) -> anyhow::Result<Self> {
        let (backend, device) = (config.flag("backend")?, config.flag("device")?);
        let backend = backend.or_else(|| device.as_ref().map(|_| config.text("backend").to_owned()));
        Ok(Self::new(backend, device))
    }

    /// From wherever the settings come.
    pub fn of_settings(config: &Config) -> Self {
        let text = |name: &str| Some(config.text(name).to_owned());
        Self::new(text("backend"), text("device"))
    }

    fn new(backend: Option<String>, device: Option<String>) -> Self {
        Self {
            backend: backend.filter(|name| name != AUTO),
            device: device.filter(|which| !which.is_empty()),
        }
    }

    /// The one backend that counts, if it is one.
    pub fn backend(&self) -> Option<&str> {
        self.backend.as_deref()
    }

    /// Whether that is the processor: then no driver is asked.
    pub fn is_processor(&self) -> bool {
        self.backend.as_deref() == Some("cpu")
    }

    /// What of it is named, a part of a name or a place.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// The rows that are meant; there is at least one, or an error says what there is.
    pub fn keep(&self, rows: Vec<Row>, outcomes: &[BackendSurvey]) -> anyhow::Result<Vec<Row>> {
        let rows = match &self.backend {
            Some(backend) => self.of_backend(backend, rows, outcomes)?,
            None => rows,
        };
        let Some(which) = &self.device else { return Ok(rows) };
        let (named, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| self.names(row, which));
        if named.is_empty() {
            let there: Vec<String> = others.iter().map(Row::label).collect();
            let (which, there) = (which.clone(), there.join("; "));
            return Err(CommandError::NoSuchDevice { which, there }.into());
        }
        Ok(named)
    }

    fn of_backend(
        &self,
        backend: &str,
        rows: Vec<Row>,
        outcomes: &[BackendSurvey],
    ) -> anyhow::Result<Vec<Row>> {
        let rows: Vec<Row> = rows.into_iter().filter(|row| row.is_shown_by(backend)).collect();
        if rows.is_empty() {
            let asked = outcomes.iter().find(|outcome| outcome.backend.name() == backend);
            let why = asked.and_then(|outcome| outcome.found.as_ref().err());
            let why =
                why.map_or_else(|| "its drivers list none".to_owned(), |silence| silence.reason.clone());
            return Err(CommandError::NothingShown { backend: backend.to_owned(), why }.into());
        }
        Ok(rows)
    }

    /// As a node takes the setting: a number is a place in the list of the backend that is named, anything
    /// else a part of a name; where no backend is named, a place has it.
    fn names(&self, row: &Row, which: &str) -> bool {
        let is_number = |text: &str| match &self.backend {
            Some(_) => !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()),
            None => is_place(text),
        };
        if !which.split(',').map(str::trim).all(is_number) {
            let is_in_name = row.name.to_lowercase().contains(&which.to_lowercase());
            return is_in_name || row.backends.iter().any(|place| place == which);
        }
        let Some(backend) = &self.backend else { return false };
        let mut places = which.split(',').map(|number| format!("{backend}:{}", number.trim()));
        places.any(|place| row.backends.contains(&place))
    }
}

#[cfg(test)]
mod tests {
    use exo_types::SupportClass;

    use super::*;

    fn kept(backend: &str, device: &str) -> Result<Vec<String>, String> {
        let row = |name: &str, backends: &[&str]| Row {
            backends: backends.iter().map(|place| (*place).to_owned()).collect(),
            ..Row::bare(name.to_owned(), SupportClass::Full, String::new())
        };
        let rows = vec![
            row("EPYC", &["cpu"]),
            row("RTX 4090", &["cuda:0", "vulkan:1"]),
            row("Arc", &["vulkan:0"]),
            row("(driver of dx12)", &["dx12"]),
        ];
        let filter = Filter::new(Some(backend.to_owned()), Some(device.to_owned()));
        let kept = filter.keep(rows, &[]).map_err(|error| error.to_string())?;
        Ok(kept.into_iter().map(|row| row.name).collect())
    }

    #[test]
    fn the_flags_show_what_they_would_make_a_node_take() {
        let names = |backend, device| kept(backend, device).unwrap().join(", ");
        assert_eq!(names("auto", ""), "EPYC, RTX 4090, Arc, (driver of dx12)");
        assert_eq!((names("cpu", ""), names("dx12", "")), ("EPYC".to_owned(), "(driver of dx12)".to_owned()));
        assert_eq!(
            (names("vulkan", "1"), names("cuda", "0")),
            ("RTX 4090".to_owned(), "RTX 4090".to_owned())
        );
        assert_eq!(
            (names("vulkan", "0,1"), names("auto", "vulkan:0")),
            ("RTX 4090, Arc".to_owned(), "Arc".to_owned())
        );
        assert_eq!(
            (names("auto", "rtx"), names("auto", "4090")),
            ("RTX 4090".to_owned(), "RTX 4090".to_owned())
        );
    }

    #[test]
    fn what_nothing_shows_is_refused_with_what_there_is() {
        let why = |backend, device| kept(backend, device).unwrap_err();
        let seven = why("vulkan", "7");
        assert!(
            seven.contains("called `7`") && seven.contains("RTX 4090 (cuda:0, vulkan:1); Arc (vulkan:0)"),
            "{seven}"
        );
        assert_eq!(why("hip", ""), "hip shows no graphics processor: its drivers list none");
        // Numbers are a backend's.
        assert!(why("auto", "0").contains("called `0`"));
    }
}
