//! Functions to components and mechanisms: the table, and what it says of one call chain.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::LazyLock;

/// What CPU time works for. The first six are the components of ES-02, its lower receive in two parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Component {
    /// Interrupts and the dispatch of softirqs.
    Interrupt,
    /// Lower receive: the driver's poll, XDP, GRO.
    Napi,
    /// Lower receive: from the core to the queue of a socket.
    Stack,
    /// System calls that receive.
    UpperReceive,
    /// System calls that send.
    UpperTransmit,
    /// From TCP and IP to the device.
    LowerTransmit,
    /// Programs, and system calls without packets.
    Program,
    /// The rest of the kernel.
    #[default]
    Kernel,
    /// weir itself.
    Weir,
    /// Nothing to do.
    Idle,
}

impl Component {
    /// All, as a packet meets them.
    pub const ALL: [Component; 10] = [
        Component::Interrupt,
        Component::Napi,
        Component::Stack,
        Component::UpperReceive,
        Component::UpperTransmit,
        Component::LowerTransmit,
        Component::Program,
        Component::Kernel,
        Component::Weir,
        Component::Idle,
    ];

    /// Its name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Component::Interrupt => "interrupt",
            Component::Napi => "lower receive: NAPI",
            Component::Stack => "lower receive: stack",
            Component::UpperReceive => "upper receive",
            Component::UpperTransmit => "upper transmit",
            Component::LowerTransmit => "lower transmit",
            Component::Program => "programs",
            Component::Kernel => "other kernel",
            Component::Weir => "weir",
            Component::Idle => "idle",
        }
    }

    /// True for packet work: the five components of ES-02.
    #[must_use]
    pub fn packets(self) -> bool {
        self <= Component::LowerTransmit
    }

    /// True for what is done for packets that are sent.
    #[must_use]
    pub fn sends(self) -> bool {
        matches!(self, Component::UpperTransmit | Component::LowerTransmit)
    }
}

/// What ES-01 calls intrusion: work of the mechanism, not of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Entry and exit of interrupts.
    Interrupts,
    /// Dispatch of softirqs.
    Softirqs,
    /// Taking locks and waiting for them.
    Locks,
    /// Waking, sleeping, switching.
    Scheduling,
    /// Copies between kernel and program.
    Copies,
}

impl Mechanism {
    /// Its name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Interrupts => "interrupts",
            Mechanism::Softirqs => "softirqs",
            Mechanism::Locks => "locks",
            Mechanism::Scheduling => "scheduling",
            Mechanism::Copies => "copies",
        }
    }
}

/// Who runs at the outer end of a chain, if it is no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Context {
    /// The idle task.
    Idle,
    /// A kernel thread.
    Thread,
}

/// What the table says of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// What it works for.
    pub component: Option<Component>,
    /// The mechanism that it is, and whether only as the innermost function.
    pub mechanism: Option<(Mechanism, bool)>,
    /// Who runs, if it is at the outer end.
    pub context: Option<Context>,
}

/// On top of whom packet work runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum On {
    /// Nobody: in a system call, or no packet work.
    #[default]
    Call,
    /// A program that an interrupt or a softirq holds up.
    Program,
    /// The idle task, or weir.
    Other,
    /// A kernel thread: ksoftirqd, that of a NAPI or of a cpumap.
    Thread,
}

/// What a sample counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Component.
    pub component: Component,
    /// Mechanism, only of packet work.
    pub mechanism: Option<Mechanism>,
    /// On top of whom.
    pub on: On,
}

/// One row of the table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row<T> {
    name: T,
    functions: Vec<String>,
    #[serde(default)]
    leaf: bool,
    #[serde(default, rename = "means")]
    _means: String,
    #[serde(rename = "source")]
    _source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    component: Vec<Row<Component>>,
    mechanism: Vec<Row<Mechanism>>,
    context: Vec<Row<Context>>,
}

/// One column of the table, to look names up in.
struct Names<T> {
    exact: HashMap<String, T>,
    beginnings: Vec<(String, T)>,
}

impl<T: Copy> Names<T> {
    fn of<R>(rows: &[Row<R>], value: impl Fn(&Row<R>) -> T) -> Names<T> {
        let mut names = Names { exact: HashMap::new(), beginnings: Vec::new() };
        for row in rows {
            for function in &row.functions {
                match function.strip_suffix('*') {
                    Some(beginning) => names.beginnings.push((beginning.to_owned(), value(row))),
                    None => _ = names.exact.insert(function.clone(), value(row)),
                }
            }
        }
        // The longest beginning wins.
        names.beginnings.sort_by_key(|(beginning, _)| std::cmp::Reverse(beginning.len()));
        names
    }

    fn get(&self, name: &str) -> Option<T> {
        let begins = || self.beginnings.iter().find(|(b, _)| name.starts_with(b.as_str())).map(|(_, v)| *v);
        self.exact.get(name).copied().or_else(begins)
    }
}

struct Lookup {
    components: Names<Component>,
    mechanisms: Names<(Mechanism, bool)>,
    contexts: Names<Context>,
}

static LOOKUP: LazyLock<Lookup> = LazyLock::new(|| {
    let table: Result<Table, _> = toml::from_str(include_str!("components.toml"));
    // The file is part of the program, and a test parses it.
    let table = table.unwrap_or(Table { component: Vec::new(), mechanism: Vec::new(), context: Vec::new() });
    Lookup {
        components: Names::of(&table.component, |row| row.name),
        mechanisms: Names::of(&table.mechanism, |row| (row.name, row.leaf)),
        contexts: Names::of(&table.context, |row| row.name),
    }
});

/// What the table says of the function `name`.
#[must_use]
pub fn class(name: &str) -> Class {
    Class {
        component: LOOKUP.components.get(name),
        mechanism: LOOKUP.mechanisms.get(name),
        context: LOOKUP.contexts.get(name),
    }
}

/// Places a sample: `chain` has the functions in the kernel, innermost first; it is not looked at if the CPU was
/// outside the kernel (`user`). `own`: the process is weir.
#[must_use]
pub fn place(chain: &[Class], user: bool, own: bool) -> Placed {
    let program = if own { Component::Weir } else { Component::Program };
    if user {
        return Placed { component: program, mechanism: None, on: On::Call };
    }
    let runs = |context| chain.iter().any(|class| class.context == Some(context));
    let base = match (runs(Context::Idle), runs(Context::Thread)) {
        (true, _) => Component::Idle,
        (_, true) => Component::Kernel,
        _ if chain.is_empty() => Component::Kernel,
        _ => program,
    };
    let decisive = chain.iter().position(|class| class.component.is_some());
    let component = decisive.and_then(|at| chain[at].component).unwrap_or(base);
    // What is called for weir alone is weir's, packet work is not.
    let component = if component == Component::Program && own { Component::Weir } else { component };
    let inner = decisive.map_or(&[][..], |at| &chain[..=at]);
    let found = inner.iter().enumerate().find_map(|(depth, class)| {
        class.mechanism.filter(|(_, leaf)| depth == 0 || !leaf).map(|(mechanism, _)| mechanism)
    });
    let interrupted = chain.iter().any(|class| class.component == Some(Component::Interrupt));
    let on = match base {
        _ if !component.packets() => On::Call,
        Component::Kernel => On::Thread,
        _ if !interrupted => On::Call,
        Component::Program => On::Program,
        _ => On::Other,
    };
    Placed { component, mechanism: found.filter(|_| component.packets()), on }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        let table: Table = toml::from_str(include_str!("components.toml")).unwrap();
        // All but weir, which is known by its process.
        assert_eq!(table.component.len(), Component::ALL.len() - 1);
        assert_eq!((table.mechanism.len(), table.context.len()), (5, 2));
        let mut seen = std::collections::BTreeSet::new();
        for row in &table.component {
            assert!(row._source.contains('/') && row._means.len() > 5, "{:?}", row.name);
            for function in &row.functions {
                assert!(seen.insert(function.clone()), "{function} twice");
            }
        }
        let mechanisms = table.mechanism.iter().map(|r| (&r._source, &r.functions));
        let contexts = table.context.iter().map(|r| (&r._source, &r.functions));
        assert!(
            mechanisms
                .chain(contexts)
                .all(|(source, functions)| source.contains('/') && !functions.is_empty())
        );
    }

    #[test]
    fn the_longest_name_wins() {
        assert_eq!(class("net_rx_action").component, Some(Component::Napi));
        assert_eq!(class("napi_gro_receive_skb").component, Some(Component::Napi));
        assert_eq!(class("tcp_sendmsg_locked").component, Some(Component::UpperTransmit));
        assert_eq!(class("tcp_recvmsg").component, Some(Component::UpperReceive));
        assert_eq!(class("_raw_spin_unlock_irqrestore").mechanism, None);
        assert_eq!(class("vfs_read"), Class::default());
    }
}
