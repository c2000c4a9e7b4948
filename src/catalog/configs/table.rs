//! The tables of config definitions, read once from the files beside this one.

use std::sync::LazyLock;

/// What a set of configs belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A topic.
    Topic,
    /// A broker, or all of them.
    Broker,
    /// A group.
    Group,
    /// A client metrics subscription.
    ClientMetrics,
}

impl Scope {
    /// The word for it in messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Broker => "broker",
            Self::Group => "group",
            Self::ClientMetrics => "client metrics",
        }
    }
}

/// Type of a value. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum ConfigType {
    /// `true` or `false`.
    Boolean = 1,
    /// Any text.
    String = 2,
    /// 32 bits, signed.
    Int = 3,
    /// 16 bits, signed.
    Short = 4,
    /// 64 bits, signed.
    Long = 5,
    /// A floating-point number.
    Double = 6,
    /// Comma-separated texts.
    List = 7,
    /// A class name.
    Class = 8,
    /// A secret.
    Password = 9,
}

impl ConfigType {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Boolean => "BOOLEAN",
            Self::String => "STRING",
            Self::Int => "INT",
            Self::Short => "SHORT",
            Self::Long => "LONG",
            Self::Double => "DOUBLE",
            Self::List => "LIST",
            Self::Class => "CLASS",
            Self::Password => "PASSWORD",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        use ConfigType::*;
        [
            Boolean, String, Int, Short, Long, Double, List, Class, Password,
        ]
        .into_iter()
        .find(|t| t.name() == name)
    }
}

/// What setting a config does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does what its name says.
    Honoured,
    /// It does something close, see the text.
    Mapped,
    /// It does nothing here, see the text.
    Meaningless,
}

impl Effect {
    /// The word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Honoured => "honoured",
            Self::Mapped => "mapped",
            Self::Meaningless => "meaningless here",
        }
    }
}

/// Rule for values beyond their type.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// None.
    Any,
    /// A number of at least this.
    AtLeast(i64),
    /// A number between the two.
    Between(i64, i64),
    /// A number between the two, or -1 for the codec's default.
    Level(i64, i64),
    /// One of these texts.
    OneOf(Vec<&'static str>),
    /// A list of these texts, none twice.
    ListOf(Vec<&'static str>),
    /// `*`, or `partition:broker` pairs.
    ThrottledReplicas,
    /// Where a share group starts: a word or `by_duration:` with an ISO-8601 duration.
    OffsetReset,
}

/// Another name under which a broker gives the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynonymDef {
    /// The broker's config.
    pub name: &'static str,
    /// Its unit in units of the config.
    pub factor: i64,
}

/// One config.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigDef {
    /// Its name.
    pub name: &'static str,
    /// Type of its values.
    pub kind: ConfigType,
    /// The built-in value.
    pub default: Option<&'static str>,
    /// Whether it can't be changed at run time.
    pub read_only: bool,
    /// Whether values are never shown.
    pub sensitive: bool,
    /// Whether it can be set for one broker but not for all.
    pub per_broker: bool,
    /// Whether it is listed only where it is set: ours, unknown to Kafka's tools.
    pub hidden: bool,
    /// Broker configs that give the value where none is set here, strongest first.
    pub synonyms: Vec<SynonymDef>,
    /// What values may be.
    pub check: Check,
    /// What it does here, and how close that is to Kafka. Broker configs have none of their own:
    /// they are keys of the configuration, which says it.
    pub here: Option<(Effect, &'static str)>,
}

/// All configs of a scope.
#[derive(Debug)]
pub struct Table {
    scope: Scope,
    rows: Vec<ConfigDef>,
}

impl Table {
    /// What the configs belong to.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The definition of a config.
    pub fn get(&self, name: &str) -> Option<&ConfigDef> {
        let at = self.rows.binary_search_by(|row| row.name.cmp(name)).ok()?;
        self.rows.get(at)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigDef> {
        self.rows.iter()
    }
}

static TOPIC: LazyLock<Table> = LazyLock::new(|| parse(Scope::Topic, include_str!("topic.tsv")));
static BROKER: LazyLock<Table> = LazyLock::new(|| parse(Scope::Broker, include_str!("broker.tsv")));
static GROUP: LazyLock<Table> = LazyLock::new(|| parse(Scope::Group, include_str!("group.tsv")));
static CLIENT_METRICS: LazyLock<Table> =
    LazyLock::new(|| parse(Scope::ClientMetrics, include_str!("client-metrics.tsv")));

/// The table of a scope.
pub fn table(scope: Scope) -> &'static Table {
    match scope {
        Scope::Topic => &TOPIC,
        Scope::Broker => &BROKER,
        Scope::Group => &GROUP,
        Scope::ClientMetrics => &CLIENT_METRICS,
    }
}

/// Reads a table. A line that does not parse is left out; a test holds that there is none.
fn parse(scope: Scope, text: &'static str) -> Table {
    let mut rows: Vec<ConfigDef> = lines(text).filter_map(parse_row).collect();
    rows.sort_by_key(|row| row.name);
    Table { scope, rows }
}

/// The lines of a table that hold a config.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn parse_row(line: &'static str) -> Option<ConfigDef> {
    let mut columns = line.split('\t');
    let name = columns.next()?;
    let kind = ConfigType::of_name(columns.next()?)?;
    let default = Some(columns.next()?).filter(|d| *d != "\\N");
    let flags = columns.next()?;
    let synonyms = some(columns.next()?)
        .map(|list| {
            list.split(',')
                .map(parse_synonym)
                .collect::<Option<Vec<_>>>()
        })
        .unwrap_or_else(|| Some(Vec::new()))?;
    let check = some(columns.next()?).map_or(Some(Check::Any), parse_check)?;
    let here = match columns.next() {
        Some(word) => Some((parse_effect(word)?, columns.next()?)),
        None => None,
    };
    let flag = |f: char| flags.contains(f);
    Some(ConfigDef {
        name,
        kind,
        default,
        read_only: flag('r'),
        sensitive: flag('s'),
        per_broker: flag('b'),
        hidden: flag('h'),
        synonyms,
        check,
        here,
    })
}

fn some(column: &'static str) -> Option<&'static str> {
    Some(column).filter(|c| *c != "-")
}

fn parse_effect(word: &str) -> Option<Effect> {
    match word {
        "honoured" => Some(Effect::Honoured),
        "mapped" => Some(Effect::Mapped),
        "meaningless" => Some(Effect::Meaningless),
        _ => None,
    }
}

fn parse_synonym(text: &'static str) -> Option<SynonymDef> {
    match text.split_once('*') {
        None => Some(SynonymDef {
            name: text,
            factor: 1,
        }),
        Some((name, factor)) => Some(SynonymDef {
            name,
            factor: factor.parse().ok()?,
        }),
    }
}

fn parse_check(text: &'static str) -> Option<Check> {
    let (rule, args) = text.split_once(':').unwrap_or((text, ""));
    let range = || {
        let (low, high) = args.split_once("..")?;
        Some((low.parse().ok()?, high.parse().ok()?))
    };
    let words = || args.split(',').collect();
    match rule {
        "min" => Some(Check::AtLeast(args.parse().ok()?)),
        "between" => range().map(|(low, high)| Check::Between(low, high)),
        "level" => range().map(|(low, high)| Check::Level(low, high)),
        "in" => Some(Check::OneOf(words())),
        "list" => Some(Check::ListOf(words())),
        "throttled" => Some(Check::ThrottledReplicas),
        "reset" => Some(Check::OffsetReset),
        _ => None,
    }
}
