//! The rows of a list: which are shown, and in what order. In: `--filter`, `--sort` and `--limit`, the list's columns, and its
//! rows. Out: the rows that were asked for. Every command that lists something calls it, before it prints a table or JSON, so
//! that both have the same rows in the same order.

use std::cmp::Ordering;
use std::convert::Infallible;
use std::str::FromStr;

use clap::Args;
use gleaner_types::text::harmless;

/// The options that every list has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ListArgs {
    /// Only rows with this text in any column, or with this value in a column.
    ///
    /// `COLUMN!=VALUE`, `COLUMN>VALUE` and `COLUMN<VALUE` work too; what is not known is `-`. Given more than once, a row must pass
    /// all of them. A column that does not exist is answered by those that do.
    #[arg(long, value_name = "TEXT|COLUMN=VALUE")]
    filter: Vec<Filter>,
    /// Sorts by a column, the smallest first, or the largest first with `:desc`. What is not known comes last.
    #[arg(long, value_name = "COLUMN[:desc]")]
    sort: Option<Sort>,
    /// Shows at most so many rows; of a log that is not sorted the newest.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// A column that was named does not exist.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} {}: there is no such column; the columns are {columns}", harmless(named))]
pub(crate) struct NoSuchColumn {
    option: &'static str,
    named: String,
    columns: String,
}

/// A filter compares numbers to something else.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--filter {0}{sign}{1}: {0} is a number, without a unit: CPU in cores, durations in seconds, memory in bytes; `-` is not known",
    harmless(name),
    harmless(value)
)]
pub(crate) struct NotANumber {
    name: String,
    sign: &'static str,
    value: String,
}

/// How a row's value must stand to the one that is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Equal,
    Other,
    More,
    Less,
}

impl Relation {
    const fn sign(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::Other => "!=",
            Self::More => ">",
            Self::Less => "<",
        }
    }
}

/// What a row must have.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Filter {
    Text(String),
    Column { name: String, relation: Relation, value: String },
}

impl FromStr for Filter {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let Some(place) = text.find(['=', '>', '<']) else { return Ok(Self::Text(text.to_lowercase())) };
        let (name, relation) = match (&text[..place], &text[place..=place]) {
            (name, "=") => match name.strip_suffix('!') {
                Some(name) => (name, Relation::Other),
                None => (name, Relation::Equal),
            },
            (name, ">") => (name, Relation::More),
            (name, _) => (name, Relation::Less),
        };
        // A sentence may have such a sign too.
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ' ')) {
            return Ok(Self::Text(text.to_lowercase()));
        }
        Ok(Self::Column { name: name.to_owned(), relation, value: text[place + 1..].trim().to_owned() })
    }
}

impl Filter {
    /// What is looked for in any column, in small letters.
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Column { name, relation, value } => format!("{name}{}{value}", relation.sign()).to_lowercase(),
        }
    }
}

/// The order of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sort {
    column: String,
    descending: bool,
}

impl FromStr for Sort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (column, descending) = match text.split_once(':') {
            None => (text, false),
            Some((column, "asc")) => (column, false),
            Some((column, "desc")) => (column, true),
            Some((_, other)) => return Err(format!("{other:?} is no order; write COLUMN, COLUMN:asc or COLUMN:desc")),
        };
        Ok(Self { column: column.to_owned(), descending })
    }
}

/// The value that a row has in a column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Number(f64),
    /// Not known, or there is none.
    Unknown,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl<V: Into<Self>> From<Option<V>> for Value {
    fn from(value: Option<V>) -> Self {
        value.map_or(Self::Unknown, Into::into)
    }
}

impl Value {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Unknown => "-".to_owned(),
        }
    }

    fn stands(&self, relation: Relation, wanted: &str) -> bool {
        match relation {
            Relation::Equal => self.is(wanted),
            Relation::Other => !self.is(wanted),
            Relation::More => self.against(wanted) == Some(Ordering::Greater),
            Relation::Less => self.against(wanted) == Some(Ordering::Less),
        }
    }

    /// The same text in any case, or the same number to as many digits as are given.
    fn is(&self, wanted: &str) -> bool {
        match (self, wanted.parse::<f64>()) {
            (Self::Number(number), Ok(wanted_number)) => {
                let digits = wanted.split_once('.').map_or(0, |(_, digits)| digits.len().min(15));
                (number - wanted_number).abs() <= 0.5 * 0.1_f64.powi(i32::try_from(digits).unwrap_or(0))
            }
            _ => self.text().to_lowercase() == wanted.to_lowercase(),
        }
    }

    /// How it compares to a value that is given; `None` where they cannot be compared.
    fn against(&self, wanted: &str) -> Option<Ordering> {
        match self {
            Self::Number(number) => number.partial_cmp(&wanted.parse().ok()?),
            Self::Text(text) => Some(text.as_str().cmp(wanted)),
            Self::Unknown => None,
        }
    }

    /// The order of rows; what is unknown is last either way.
    fn order(&self, other: &Self, descending: bool) -> Ordering {
        let known = match (self, other) {
            (Self::Unknown, Self::Unknown) => return Ordering::Equal,
            (Self::Unknown, _) => return Ordering::Greater,
            (_, Self::Unknown) => return Ordering::Less,
            (Self::Number(one), Self::Number(another)) => one.total_cmp(another),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
            (Self::Text(one), Self::Text(another)) => one.cmp(another),
        };
        if descending { known.reverse() } else { known }
    }
}

/// What finds a row's value.
type Find<'a, T> = Box<dyn Fn(&T) -> Value + 'a>;

/// The columns of a list, by which its rows can be chosen and sorted: usually those of its table.
pub(crate) struct Columns<'a, T>(Vec<(&'static str, Find<'a, T>)>);

impl<'a, T> Columns<'a, T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    /// With one more: its name, in small letters with `_` between words, and the value that a row has in it.
    pub(crate) fn with(mut self, name: &'static str, value: impl Fn(&T) -> Value + 'a) -> Self {
        self.0.push((name, Box::new(value)));
        self
    }

    fn place(&self, option: &'static str, named: &str) -> Result<usize, NoSuchColumn> {
        let wanted = named.to_lowercase().replace(['-', ' '], "_");
        self.0.iter().position(|(name, _)| *name == wanted).ok_or_else(|| NoSuchColumn {
            option,
            named: named.to_owned(),
            columns: self.0.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        })
    }
}

/// What was asked of a list, with its columns found.
pub(crate) struct List<'a, T> {
    columns: Columns<'a, T>,
    filters: Vec<(Option<usize>, Filter)>,
    sort: Option<(usize, bool)>,
    limit: usize,
}

impl ListArgs {
    /// Finds the columns that are named.
    pub(crate) fn over<'a, T>(&self, columns: Columns<'a, T>) -> Result<List<'a, T>, NoSuchColumn> {
        let filter = |filter: &Filter| {
            let place = match filter {
                Filter::Text(_) => None,
                Filter::Column { name, .. } => match columns.place("--filter", name) {
                    // A sentence with such a sign: columns are named by one word.
                    Err(_) if name.contains(' ') => None,
                    found => Some(found?),
                },
            };
            Ok((place, filter.clone()))
        };
        let filters = self.filter.iter().map(filter).collect::<Result<_, _>>()?;
        let sort = self.sort.as_ref().map(|sort| Ok((columns.place("--sort", &sort.column)?, sort.descending)));
        Ok(List { filters, sort: sort.transpose()?, limit: self.limit.unwrap_or(usize::MAX), columns })
    }

    /// Rows cannot be shown one by one: they are sorted first, or only the last ones are shown.
    pub(crate) fn needs_all(&self) -> bool {
        self.sort.is_some() || self.limit.is_some()
    }
}

impl<T> List<'_, T> {
    /// A row passes every filter.
    pub(crate) fn passes(&self, row: &T) -> bool {
        self.filters.iter().all(|(place, filter)| match (place, filter) {
            (Some(place), Filter::Column { relation, value, .. }) => {
                self.columns.0[*place].1(row).stands(*relation, value)
            }
            (_, filter) => {
                let text = filter.text();
                self.columns.0.iter().any(|(_, find)| find(row).text().to_lowercase().contains(&text))
            }
        })
    }

    /// The rows to show, in order.
    ///
    /// # Errors
    /// A column of numbers is compared to what is no number.
    pub(crate) fn rows(&self, mut rows: Vec<T>) -> Result<Vec<T>, NotANumber> {
        self.check(&rows)?;
        rows.retain(|row| self.passes(row));
        self.sort(&mut rows);
        rows.truncate(self.limit);
        Ok(rows)
    }

    fn check(&self, rows: &[T]) -> Result<(), NotANumber> {
        for (place, filter) in &self.filters {
            let (Some(place), Filter::Column { name, relation, value }) = (place, filter) else { continue };
            let of_numbers = |row: &T| matches!(self.columns.0[*place].1(row), Value::Number(_));
            if value != "-" && value.parse::<f64>().is_err() && rows.iter().any(of_numbers) {
                return Err(NotANumber { name: name.clone(), sign: relation.sign(), value: value.clone() });
            }
        }
        Ok(())
    }

    /// The same of a log, whose last rows are the newest: unless they are sorted, they are the ones to show.
    ///
    /// # Errors
    /// As [`Self::rows`].
    pub(crate) fn newest(&self, rows: Vec<T>) -> Result<Vec<T>, NotANumber> {
        if self.sort.is_some() {
            return self.rows(rows);
        }
        self.check(&rows)?;
        let mut rows: Vec<T> = rows.into_iter().filter(|row| self.passes(row)).collect();
        rows.drain(..rows.len().saturating_sub(self.limit));
        Ok(rows)
    }

    fn sort(&self, rows: &mut Vec<T>) {
        let Some((place, descending)) = self.sort else { return };
        let find = &self.columns.0[place].1;
        let mut keyed: Vec<(Value, T)> = rows.drain(..).map(|row| (find(&row), row)).collect();
        // Rows of one value stay as they were.
        keyed.sort_by(|(one, _), (another, _)| one.order(another, descending));
        rows.extend(keyed.into_iter().map(|(_, row)| row));
    }
}

/// A list's text, or that no row of those there are was asked for.
pub(crate) fn or_none_passes(text: String, shown: usize, of: usize) -> String {
    match (shown, of) {
        (0, 1..) => format!("none of {of} is shown by --filter and --limit"),
        _ => text,
    }
}

#[cfg(test)]
mod tests;
