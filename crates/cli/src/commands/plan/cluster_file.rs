//! A cluster in a file: devices with what they hold and how fast they are, and the links between their nodes.
//!
//! ```toml
//! [[device]]
//! node = "desktop"
//! device = "gpu0"            # left out: "cpu"
//! kind = "discrete_gpu"      # left out: "cpu"; or "integrated_gpu"
//! memory_gib = 24
//! read_gb_s = 800            # weights that decode reads; left out: estimated
//! read_gb_s_by_type = { Q4_K = 700 }
//! read_16_rows_gb_s = 20     # weights that a step of 16 streams passes on a processor; left out: derived
//!                            # (beside rates by type it is that of Q8_0)
//! read_16_rows_gb_s_by_type = { Q4_K = 11 }
//! kv_gb_s = 700              # keys and values that attention of a token reads; left out: derived
//! kv_gb_s_by_type = { f16 = 700, q8 = 500 }
//! tflops = 60                # of prefill; left out: derived from the rate of reading
//! tflops_by_type = { Q4_K = 50 }
//! prefill_read_gb_s = 2000   # weights that a prompt waits for; this and the next three left out: derived
//! attention_tflops = 15      # of a prompt's attention
//! gactivations_s = 20        # what the rest of a layer passes: a row has weights / hidden width of them
//! layer_us = 20              # the same for one row
//! unsupported_types = ["Q2_K", "Q3_K"] # weights that it cannot run; left out: none
//! memory_domain = { name = "desktop", free_gib = 20 } # the same for who shares memory; left out: none
//! source = "measured"        # "measured_once", "measured_long_ago"; left out: "stated", as on a data sheet
//!
//! [[link]]
//! from = "desktop"
//! to = "laptop"
//! rtt_ms = 1.0
//! mbit_s = 1000
//! source = "measured"        # as of a device
//! mbit_s_source = "measured_once" # of the rate; left out: as `source`
//! ```
//!
//! A link counts for both directions unless the other one has its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use exo_api::{ClusterView, DeviceView, ProvenanceView, TypeRatesView};
use exo_node::planning;
use exo_planner::{DeviceRates, Figure, LinkFacts, PlanDevice};
use exo_types::{
    Correction, Corrections, DType, DeviceFacts, DeviceId, DeviceKind, KvDType, KvRates, LayerRates,
    MemoryDomain, NodeId,
};
use serde::{Deserialize, Serialize};

/// Older than what is not stale.
const LONG_AGO: Duration = Duration::from_secs(48 * 3600);
const GIB: f64 = (1u64 << 30) as f64;

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cluster {
    #[serde(default)]
    device: Vec<Device>,
    #[serde(default)]
    link: Vec<Link>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    #[default]
    Stated,
    Measured,
    /// A single time.
    MeasuredOnce,
    /// Longer than a day ago.
    MeasuredLongAgo,
}

impl Source {
    fn figure(self, value: f64) -> Figure {
        match self {
            Self::Stated => Figure::stated(value),
            Self::Measured => Figure::measured(value),
            Self::MeasuredOnce => Figure::measured_at(value, Duration::ZERO, 1),
            Self::MeasuredLongAgo => Figure::measured_at(value, LONG_AGO, 2),
        }
    }

    /// As the planner counts measured numbers of one source: the least certain of them decides.
    fn of(figures: impl IntoIterator<Item = Figure>) -> Self {
        let error = |source: Self| source.figure(1.0).source.error_percent();
        let most = figures.into_iter().map(|figure| figure.source.error_percent()).max().unwrap_or(0);
        let as_certain = [Self::MeasuredLongAgo, Self::MeasuredOnce].into_iter();
        as_certain
            .filter(|source| error(*source) <= most)
            .max_by_key(|source| error(*source))
            .unwrap_or(Self::Measured)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    node: String,
    #[serde(default = "cpu")]
    device: String,
    #[serde(default = "processor")]
    kind: DeviceKind,
    memory_gib: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_gb_s: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    read_gb_s_by_type: BTreeMap<DType, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_16_rows_gb_s: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    read_16_rows_gb_s_by_type: BTreeMap<DType, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kv_gb_s: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    kv_gb_s_by_type: BTreeMap<KvDType, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tflops: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tflops_by_type: BTreeMap<DType, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefill_read_gb_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attention_tflops: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gactivations_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unsupported_types: Vec<DType>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory_domain: Option<Domain>,
    #[serde(default = "full")]
    thermal_percent: u32,
    #[serde(default)]
    source: Source,
}

/// Memory that devices share, by a name that they have in common.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Domain {
    name: String,
    free_gib: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    from: String,
    to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rtt_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mbit_s: Option<f64>,
    #[serde(default)]
    source: Source,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mbit_s_source: Option<Source>,
}

fn cpu() -> String {
    "cpu".to_owned()
}

fn processor() -> DeviceKind {
    DeviceKind::Cpu
}

fn full() -> u32 {
    100
}

/// What the file describes.
pub fn open(path: &Path) -> anyhow::Result<(Vec<PlanDevice>, Vec<LinkFacts>)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    read(&text).with_context(|| format!("{} describes no cluster", path.display()))
}

/// What such a text describes. Errors name the device or link.
pub fn read(text: &str) -> anyhow::Result<(Vec<PlanDevice>, Vec<LinkFacts>)> {
    let cluster: Cluster = toml::from_str(text)?;
    ensure!(!cluster.device.is_empty(), "it has no [[device]]: describe one, with its node and memory_gib");
    let mut devices: Vec<PlanDevice> = Vec::new();
    for device in &cluster.device {
        let one = plan_device(device)?;
        let is_same = |d: &PlanDevice| d.node == one.node && d.device.id == one.device.id;
        ensure!(
            !devices.iter().any(is_same),
            "{} {} is there twice: devices of one node have different names",
            device.node,
            device.device
        );
        devices.push(one);
    }
    let mut links: Vec<LinkFacts> = Vec::new();
    for link in &cluster.link {
        let one = plan_link(link, &cluster.device)?;
        let is_same = |l: &LinkFacts| l.from == one.from && l.to == one.to;
        ensure!(
            !links.iter().any(is_same),
            "the link from {} to {} is there twice: leave one out",
            link.from,
            link.to
        );
        links.push(one);
    }
    Ok((devices, links))
}

/// A number that counts: one that no device or link has would be taken for a missing one.
fn figure(
    what: &str,
    of: &str,
    number: Option<f64>,
    unit: f64,
    source: Source,
) -> anyhow::Result<Option<Figure>> {
    let Some(value) = above_zero(what, of, number, unit)? else { return Ok(None) };
    let figure = source.figure(value).plausible();
    let Some(figure) = figure else {
        bail!(
            "{what} of {of} is {}: nothing is so fast, or so slow; look at its unit",
            number.unwrap_or(value)
        )
    };
    Ok(Some(figure))
}

/// A number above 0, in a unit.
fn above_zero(what: &str, of: &str, number: Option<f64>, unit: f64) -> anyhow::Result<Option<f64>> {
    match number {
        Some(number) if !(number.is_finite() && number > 0.0) => {
            bail!("{what} of {of} is {number}: it must be above 0")
        }
        number => Ok(number.map(|number| number * unit)),
    }
}

fn plan_device(device: &Device) -> anyhow::Result<PlanDevice> {
    let name = format!("{} {}", device.node, device.device);
    ensure!(!device.node.is_empty() && !device.device.is_empty(), "a device or its node has no name");
    let figure = |what, number, unit| figure(what, &name, number, unit, device.source);
    let memory = above_zero("memory_gib", &name, Some(device.memory_gib), GIB)?.unwrap_or_default() as u64;
    ensure!(memory > 0, "memory_gib of {name} is {}: that is less than a byte", device.memory_gib);
    ensure!((1..=100).contains(&device.thermal_percent), "thermal_percent of {name} is not from 1 to 100");
    let shared = |domain: &Domain| -> anyhow::Result<MemoryDomain> {
        let free = above_zero("free_gib of the memory domain", &name, Some(domain.free_gib), GIB)?;
        Ok(MemoryDomain::of(domain.name.as_bytes(), free.unwrap_or_default() as u64))
    };
    let typed = |what, rates: &BTreeMap<DType, f64>, unit| -> anyhow::Result<BTreeMap<DType, Figure>> {
        let mut figures = BTreeMap::new();
        for (&dtype, &rate) in rates {
            figures.extend(figure(what, Some(rate), unit)?.map(|figure| (dtype, figure)));
        }
        Ok(figures)
    };
    let mut kv_by_type = BTreeMap::new();
    for (&of, &rate) in &device.kv_gb_s_by_type {
        kv_by_type.extend(figure("kv_gb_s_by_type", Some(rate), 1e9)?.map(|figure| (of, figure)));
    }
    let rates = DeviceRates {
        read_bytes_per_s: figure("read_gb_s", device.read_gb_s, 1e9)?,
        read_by_type: typed("read_gb_s_by_type", &device.read_gb_s_by_type, 1e9)?,
        read_16_rows_bytes_per_s: figure("read_16_rows_gb_s", device.read_16_rows_gb_s, 1e9)?,
        read_16_rows_by_type: typed("read_16_rows_gb_s_by_type", &device.read_16_rows_gb_s_by_type, 1e9)?,
        flops_per_s: figure("tflops", device.tflops, 1e12)?,
        flops_by_type: typed("tflops_by_type", &device.tflops_by_type, 1e12)?,
        kv_bytes_per_s: figure("kv_gb_s", device.kv_gb_s, 1e9)?,
        kv_by_type,
        prefill_read_bytes_per_s: figure("prefill_read_gb_s", device.prefill_read_gb_s, 1e9)?,
        attention_flops_per_s: figure("attention_tflops", device.attention_tflops, 1e12)?,
        activations_per_s: figure("gactivations_s", device.gactivations_s, 1e9)?,
        layer_s: figure("layer_us", device.layer_us, 1e-6)?,
        step_s: figure("step_us", device.step_us, 1e-6)?,
        corrections: Corrections::default(),
    };
    let facts = DeviceFacts {
        memory_domain: device.memory_domain.as_ref().map(shared).transpose()?,
        read_bytes_per_s: rates.read_bytes_per_s.map(|f| f.value),
        flops_per_s: rates.flops_per_s.map(|f| f.value),
        unsupported_types: device.unsupported_types.clone(),
        ..DeviceFacts::unmeasured(DeviceId(device.device.clone()), device.kind, &name, "described", memory)
    };
    let thermal_percent = device.thermal_percent;
    let reported = PlanDevice::reported(node_id(&device.node), device.node.clone(), facts, None);
    Ok(PlanDevice { rates, thermal_percent, ..reported })
}

fn plan_link(link: &Link, devices: &[Device]) -> anyhow::Result<LinkFacts> {
    let name = format!("the link from {} to {}", link.from, link.to);
    for end in [&link.from, &link.to] {
        ensure!(
            devices.iter().any(|d| d.node == *end),
            "{name}: no device is of a node `{end}`; describe one, or leave the link out"
        );
    }
    ensure!(link.from != link.to, "{name} leads nowhere: name two nodes");
    let rate_source = link.mbit_s_source.unwrap_or(link.source);
    Ok(LinkFacts {
        from: node_id(&link.from),
        to: node_id(&link.to),
        rtt_s: figure("rtt_ms", &name, link.rtt_ms, 1e-3, link.source)?,
        bytes_per_s: figure("mbit_s", &name, link.mbit_s, 1e6 / 8.0, rate_source)?,
    })
}

/// A stand-in for the id of a node that only a file knows: of its name.
fn node_id(name: &str) -> NodeId {
    NodeId(*blake3::hash(name.as_bytes()).as_bytes())
}

/// The running cluster as such a file. Nodes of one name get their ids behind it. Devices that are full are
/// left out: a file has none of 0 bytes.
pub fn write(view: &ClusterView) -> anyhow::Result<String> {
    let name = |id: &str| -> String {
        let node = view.nodes.iter().find(|n| n.id == id);
        let name = node.map_or(id, |n| n.name.as_str());
        let is_shared = view.nodes.iter().filter(|n| n.name == name).count() > 1;
        if is_shared { format!("{name} {id}") } else { name.to_owned() }
    };
    // As a plan on the running cluster counts them.
    let (devices, links) = planning::devices_of(view);
    let usable = |node: &str, device: &str| {
        let is_this = |d: &&PlanDevice| d.node.to_full() == node && d.device.id.0 == device;
        devices.iter().find(is_this).filter(|d| d.excluded.is_none())
    };
    let mut cluster = Cluster::default();
    for node in &view.nodes {
        for device in node.devices.iter().filter(|d| has_room(d)) {
            if let Some(planned) = usable(&node.id, &device.id) {
                cluster.device.push(as_measured(name(&node.id), device, planned));
            }
        }
    }
    ensure!(
        !cluster.device.is_empty(),
        "no device of the running cluster has room that may be used: see `exo status`"
    );
    let is_known = |id: &str| cluster.device.iter().any(|d| d.node == name(id));
    let links = links.iter().map(|l| (l.from.to_full(), l.to.to_full(), l));
    let links = links.filter(|(from, to, _)| from != to && is_known(from) && is_known(to));
    cluster.link = links
        .map(|(from, to, l)| {
            let (source, rate_source) = (Source::of(l.rtt_s), Source::of(l.bytes_per_s));
            Link {
                from: name(&from),
                to: name(&to),
                rtt_ms: l.rtt_s.filter(|rtt| rtt.value > 0.0).map(|rtt| rtt.value * 1e3),
                mbit_s: l.bytes_per_s.map(|rate| rate.value * 8.0 / 1e6),
                source,
                mbit_s_source: (l.bytes_per_s.is_some() && rate_source != source).then_some(rate_source),
            }
        })
        .collect();
    Ok(toml::to_string(&cluster)?)
}

fn has_room(device: &DeviceView) -> bool {
    let is_domain_full = device.memory_domain.as_ref().is_some_and(|domain| domain.free_bytes == 0);
    device.memory_free_bytes > 0 && !is_domain_full
}

/// A device with what was measured and learned of it, and as it is planned with.
fn as_measured(node: String, device: &DeviceView, planned: &PlanDevice) -> Device {
    let corrected = |rate: f64, by: Option<Correction>| {
        rate * by.map_or(1.0, |learned| f64::from(learned.percent) / 100.0)
    };
    let Corrections { decode, prefill } = device.corrections;
    // Q8_0 among them: the general rate then stands for what was not measured.
    let (read_q8_0, flops_q8_0) = device.read_bytes_per_s.zip(device.flops_per_s).unzip();
    let typed = |rate: &dyn Fn(&TypeRatesView) -> f64, q8_0: Option<f64>, by, unit: f64| {
        let others = device.rates_by_type.iter().map(|rates| (rates.dtype, rate(rates)));
        let all = others.chain(q8_0.map(|rate| (DType::Q8_0, rate)));
        all.map(|(dtype, rate)| (dtype, corrected(rate, by) / unit)).collect::<BTreeMap<DType, f64>>()
    };
    let times = device.rates_by_type.iter().map(|rates| rates.measured).chain(device.rates_measured);
    let figures = times.map(|ProvenanceView { samples, age_s }| {
        Figure::measured_at(1.0, Duration::from_secs(age_s.into()), samples)
    });
    let of_prefill = |rate: &dyn Fn(&LayerRates) -> f64, unit: f64| {
        device.layer_rates.map(|rates| corrected(rate(&rates), prefill) / unit)
    };
    let kv = device.layer_rates.and_then(|rates| rates.kv_read_bytes_per_s);
    let kv = kv.map(KvRates::by_type).into_iter().flatten();
    let rates = planned.rates.complete(device.kind);
    let of_16_rows = |dtype: &DType| Some((*dtype, rates.read_16_rows_of(*dtype)? / 1e9));
    let of_16_rows: BTreeMap<DType, f64> = rates.few_rows_by_type.keys().filter_map(of_16_rows).collect();
    Device {
        node,
        device: device.id.clone(),
        kind: device.kind,
        memory_gib: device.memory_free_bytes as f64 / GIB,
        read_gb_s: device.read_bytes_per_s.map(|rate| corrected(rate, decode) / 1e9),
        read_gb_s_by_type: typed(&|rates| rates.read_bytes_per_s, read_q8_0, decode, 1e9),
        read_16_rows_gb_s: of_16_rows.get(&DType::Q8_0).copied(),
        read_16_rows_gb_s_by_type: of_16_rows,
        kv_gb_s: None,
        kv_gb_s_by_type: kv.map(|(of, rate)| (of, corrected(rate, decode) / 1e9)).collect(),
        tflops: device.flops_per_s.map(|rate| corrected(rate, prefill) / 1e12),
        tflops_by_type: typed(&|rates| rates.flops_per_s, flops_q8_0, prefill, 1e12),
        prefill_read_gb_s: of_prefill(&|rates| rates.prefill_read_bytes_per_s, 1e9),
        attention_tflops: of_prefill(&|rates| rates.attention_flops_per_s, 1e12),
        gactivations_s: of_prefill(&|rates| rates.activations_per_s, 1e9),
        layer_us: device.layer_rates.map(|rates| rates.layer_s * 1e6),
        step_us: None,
        unsupported_types: device.unsupported_types.clone(),
        memory_domain: device
            .memory_domain
            .as_ref()
            .map(|domain| Domain { name: domain.id.clone(), free_gib: domain.free_bytes as f64 / GIB }),
        thermal_percent: 100,
        source: Source::of(figures),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const DESKTOP: &str = "[[device]]\nnode = \"desktop\"\ndevice = \"gpu0\"\nkind = \"discrete_gpu\"\nmemory_gib = 24\nread_gb_s = 800\n";
    const LAPTOP: &str =
        "[[device]]\nnode = \"laptop\"\nmemory_gib = 16\nread_gb_s_by_type = { Q4_K = 20 }\n";

    fn refused(text: &str) -> String {
        read(text).map(|_| ()).map_or_else(|error| format!("{error:#}"), |()| "taken".to_owned())
    }

    #[test]
    fn devices_and_links_are_read_in_their_units() {
        let link = "[[link]]\nfrom = \"desktop\"\nto = \"laptop\"\nrtt_ms = 2\nmbit_s = 800\n";
        let (devices, links) = read(&format!("{DESKTOP}{LAPTOP}{link}")).unwrap();
        assert_eq!(devices[0].device.memory_free_bytes, 24 << 30);
        assert_eq!(devices[0].rates.read_bytes_per_s, Some(Figure::stated(800e9)));
        assert_eq!((devices[1].device.kind, devices[1].device.id.0.as_str()), (DeviceKind::Cpu, "cpu"));
        assert_eq!(devices[1].rates.read_by_type[&DType::Q4_K].value, 20e9);
        assert_eq!((links[0].rtt_s.unwrap().value, links[0].bytes_per_s.unwrap().value), (2e-3, 1e8));
    }

    #[test]
    fn numbers_are_written_and_read_as_certain_as_they_were_measured() {
        let figure = |age_s, samples| Figure::measured_at(1.0, Duration::from_secs(age_s), samples);
        let (fresh, once, old) = (figure(60, 9), figure(60, 1), figure(90_000, 9));
        assert!(Source::of([fresh]) == Source::Measured && Source::of([fresh, once]) == Source::MeasuredOnce);
        assert!(Source::of([old, once]) == Source::MeasuredLongAgo && Source::of(None) == Source::Measured);
        let link = "[[link]]\nfrom = \"desktop\"\nto = \"laptop\"\nrtt_ms = 2\nmbit_s = 800\n";
        let link = format!("{link}source = \"measured\"\nmbit_s_source = \"measured_once\"\n");
        let (_, links) = read(&format!("{DESKTOP}{LAPTOP}{link}")).unwrap();
        let errors = [links[0].rtt_s, links[0].bytes_per_s].map(|f| f.unwrap().source.error_percent());
        assert_eq!(errors, [fresh, once].map(|figure| figure.source.error_percent()));
    }

    #[test]
    fn what_a_layer_takes_is_read_in_its_units_and_missing_where_nobody_says_it() {
        let layer = "prefill_read_gb_s = 5\nattention_tflops = 0.5\ngactivations_s = 2\nlayer_us = 20\n";
        let (devices, _) = read(&format!("{LAPTOP}{layer}{DESKTOP}")).unwrap();
        let of = |device: usize| {
            let rates = &devices[device].rates;
            let DeviceRates { prefill_read_bytes_per_s, attention_flops_per_s, .. } = rates;
            let others = [rates.activations_per_s, rates.layer_s];
            [*prefill_read_bytes_per_s, *attention_flops_per_s].into_iter().chain(others).collect::<Vec<_>>()
        };
        let read = of(0).into_iter().map(|figure| figure.unwrap().value);
        for (read, said) in read.zip([5e9, 5e11, 2e9, 2e-5]) {
            assert!((read / said - 1.0).abs() < 1e-9, "{read} for {said}");
        }
        assert_eq!(of(1), [None; 4]);
        assert_eq!(
            refused(&format!("{LAPTOP}attention_tflops = 0\n")),
            "attention_tflops of laptop cpu is 0: it must be above 0"
        );
    }

    #[test]
    fn keys_and_values_have_a_rate_for_each_type() {
        let (devices, _) = read(&format!("{LAPTOP}kv_gb_s_by_type = {{ f16 = 12, q8 = 8 }}\n")).unwrap();
        let rates: Vec<_> = devices[0].rates.kv_by_type.iter().map(|(of, f)| (*of, f.value)).collect();
        assert_eq!(rates, [(KvDType::F16, 12e9), (KvDType::Q8, 8e9)]);
        assert_eq!(
            refused(&format!("{LAPTOP}kv_gb_s_by_type = {{ f32 = 0 }}\n")),
            "kv_gb_s_by_type of laptop cpu is 0: it must be above 0"
        );
    }

    #[test]
    fn what_a_step_of_several_rows_passes_may_be_said_and_is_missing_where_nobody_says_it() {
        let of_16_rows = "read_16_rows_gb_s = 12\nread_16_rows_gb_s_by_type = { Q4_K = 9 }\n";
        let (devices, _) = read(&format!("{LAPTOP}{of_16_rows}{DESKTOP}")).unwrap();
        let [said, not_said] = [0, 1].map(|device| &devices[device].rates);
        assert_eq!(said.read_16_rows_bytes_per_s, Some(Figure::stated(12e9)));
        assert_eq!(said.read_16_rows_by_type, BTreeMap::from([(DType::Q4_K, Figure::stated(9e9))]));
        assert!(not_said.read_16_rows_bytes_per_s.is_none() && not_said.read_16_rows_by_type.is_empty());
        assert_eq!(
            refused(&format!("{LAPTOP}read_16_rows_gb_s = -1\n")),
            "read_16_rows_gb_s of laptop cpu is -1: it must be above 0"
        );
    }

    #[test]
    fn bad_files_are_refused_by_name() {
        let with = |more: &str| refused(&format!("{DESKTOP}{LAPTOP}{more}"));
        assert_eq!(refused(""), "it has no [[device]]: describe one, with its node and memory_gib");
        assert_eq!(
            refused("[[device]]\nnode = \"a\"\nmemory_gib = 0\n"),
            "memory_gib of a cpu is 0: it must be above 0"
        );
        assert_eq!(
            refused("[[device]]\nnode = \"a\"\nmemory_gib = 1\nread_gb_s = -3\n"),
            "read_gb_s of a cpu is -3: it must be above 0"
        );
        assert_eq!(
            refused("[[device]]\nnode = \"a\"\nmemory_gib = nan\n"),
            "memory_gib of a cpu is NaN: it must be above 0"
        );
        assert_eq!(with(LAPTOP), "laptop cpu is there twice: devices of one node have different names");
        assert_eq!(
            with("[[link]]\nfrom = \"desktop\"\nto = \"phone\"\n"),
            "the link from desktop to phone: no device is of a node `phone`; describe one, or leave the link out"
        );
        assert_eq!(
            with("[[link]]\nfrom = \"laptop\"\nto = \"laptop\"\n"),
            "the link from laptop to laptop leads nowhere: name two nodes"
        );
        assert_eq!(
            refused("[[device]]\nnode = \"a\"\nmemory_gib = 1\nread_gb_s = 8e11\n"),
            "read_gb_s of a cpu is 800000000000: nothing is so fast, or so slow; look at its unit"
        );
        assert!(refused("[[device]]\nnode = \"a\"\nmemory_gib = 1e-12\n").contains("less than a byte"));
        let far = with("[[link]]\nfrom = \"laptop\"\nto = \"desktop\"\nmbit_s = 1e300\n");
        assert!(far.contains("mbit_s of the link from laptop to desktop"), "{far}");
        assert!(
            refused("[[device]]\nnode = \"a\"\nmemory_gib = 1\ncolour = 3\n")
                .contains("unknown field `colour`")
        );
    }

    #[test]
    fn numbers_below_zero_and_fields_that_nobody_knows_are_refused_wherever_they_stand() {
        let link = "[[link]]\nfrom = \"desktop\"\nto = \"laptop\"\n";
        let device = "[[device]]\nnode = \"a\"\n";
        for (more, said) in [
            (format!("{device}memory_gib = -1\n"), "memory_gib of a cpu is -1: it must be above 0"),
            (format!("{link}rtt_ms = -2\n"), "rtt_ms of the link from desktop to laptop is -2: it must be"),
            (format!("{link}mbit_s = 0\n"), "mbit_s of the link from desktop to laptop is 0: it must be"),
            (
                format!("{device}memory_gib = 1\nmemory_domain = {{ name = \"m\", free_gib = -4 }}\n"),
                "free_gib of the memory domain of a cpu is -4: it must be above 0",
            ),
            (format!("{device}memory_gib = 1\nthermal_percent = 0\n"), "is not from 1 to 100"),
            (format!("{link}colour = 3\n"), "unknown field `colour`"),
            ("[[devices]]\nnode = \"a\"\n".to_owned(), "unknown field `devices`"),
            (format!("{link}{link}"), "the link from desktop to laptop is there twice: leave one out"),
        ] {
            let refused = refused(&format!("{DESKTOP}{LAPTOP}{more}"));
            assert!(refused.contains(said), "{more}: {refused}");
        }
    }

    const KEYS: &[&str] = &[
        "[[device]]",
        "[[link]]",
        "node",
        "device",
        "kind",
        "memory_gib",
        "read_gb_s",
        "read_gb_s_by_type",
        "read_16_rows_gb_s",
        "tflops",
        "layer_us",
        "unsupported_types",
        "memory_domain",
        "thermal_percent",
        "source",
        "from",
        "to",
        "rtt_ms",
        "mbit_s",
    ];
    const VALUES: &[&str] = &[
        "1",
        "0",
        "-1",
        "70",
        "1e300",
        "1e-300",
        "inf",
        "nan",
        "9223372036854775807",
        "\"desktop\"",
        "\"laptop\"",
        "\"discrete_gpu\"",
        "\"measured\"",
        "\"\"",
        "{ Q4_K = 3, Q8_0 = 1e300 }",
        "[\"Q2_K\"]",
        "{ name = \"m\", free_gib = 1e300 }",
    ];

    proptest! {
        /// Whatever stands in a file, it is an error, or a cluster whose numbers count.
        #[test]
        fn no_file_makes_the_reader_panic_or_gives_it_a_number_that_is_none(
            text in "[\\[\\]{}a-z_=\"0-9. \n-]{0,200}",
            lines in proptest::collection::vec((select(KEYS), select(VALUES)), 0..12),
        ) {
            let _ = read(&text);
            let line = |(key, value): &(&str, &str)| match key.starts_with('[') {
                true => format!("{key}\n"),
                false => format!("{key} = {value}\n"),
            };
            let lines: String = lines.iter().map(line).collect();
            let Ok((devices, links)) = read(&format!("{DESKTOP}{LAPTOP}{lines}")) else { return Ok(()) };
            for PlanDevice { device, rates, .. } in &devices {
                prop_assert!(device.memory_free_bytes > 0 && !device.id.0.is_empty());
                let by_type = rates.read_by_type.values().chain(rates.flops_by_type.values()).copied();
                let others = [rates.read_bytes_per_s, rates.flops_per_s, rates.layer_s].into_iter().flatten();
                prop_assert!(by_type.chain(others).all(|figure| figure.plausible().is_some()));
            }
            let is_known = |node: NodeId| devices.iter().any(|device| device.node == node);
            for LinkFacts { from, to, rtt_s, bytes_per_s } in links {
                prop_assert!(from != to && is_known(from) && is_known(to));
                prop_assert!([rtt_s, bytes_per_s].into_iter().flatten().all(|f| f.plausible().is_some()));
            }
        }
    }
}
