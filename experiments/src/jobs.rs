//! The papers' background jobs as profiles, calibrated on the ranges of their exhaustive survey (RHIC Fig. 2): what
//! cost and energy span over 0 to 36 volunteers. Nothing here was fitted to what Gleaner achieves on them. In: a job of
//! the papers. Out: its profile and, where the papers give them, the survey's ranges. Called by [`crate::rhic`] and by
//! the example `survey`.

use gleaner_simulator::scenario::JobProfile;

/// Range of the survey: cheapest and dearest, least and most energy over all sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SurveyRange {
    /// Dollars.
    pub cost: (f64, f64),
    /// Watt-hours.
    pub energy: (f64, f64),
}

/// A job of the papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaperJob {
    /// Word count over 70 GB.
    Wordcount,
    /// Search over 70 GB.
    Grep,
    /// π by sampling.
    Pi,
    /// Word co-occurrence over 11 GB.
    Cooccurrence,
}

impl PaperJob {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Wordcount, Self::Grep, Self::Pi, Self::Cooccurrence];

    /// Name for tables and scenarios.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wordcount => "wordcount",
            Self::Grep => "grep",
            Self::Pi => "pi",
            Self::Cooccurrence => "cooccurrence",
        }
    }

    /// What the paper measured over all sizes.
    #[must_use]
    pub const fn survey(self) -> SurveyRange {
        match self {
            Self::Wordcount => SurveyRange { cost: (4.42, 6.38), energy: (1_273.0, 1_957.0) },
            Self::Grep => SurveyRange { cost: (2.40, 5.83), energy: (710.0, 894.0) },
            Self::Pi => SurveyRange { cost: (9.25, 16.63), energy: (2_963.0, 5_461.0) },
            Self::Cooccurrence => SurveyRange { cost: (7.72, 11.41), energy: (2_230.0, 3_987.0) },
        }
    }

    /// The calibrated profile.
    #[must_use]
    pub fn profile(self) -> JobProfile {
        let (tasks, task_cpu_s, task_variation, read_mb_per_cpu_s, wait) = match self {
            Self::Wordcount => (8_960, 37.5, 0.2, 1.85, 0.0),
            Self::Grep => (6_720, 20.0, 0.2, 4.05, 0.1),
            Self::Pi => (24_000, 39.5, 0.1, 0.0, 0.0),
            Self::Cooccurrence => (5_280, 122.0, 0.3, 0.9, 0.0),
        };
        let name = self.name().into();
        JobProfile { name, tasks, task_cpu_s, task_variation, read_mb_per_cpu_s, wait, ..JobProfile::default() }
    }
}

/// The papers' jobs on HBase, of which they give no ranges: one that the disks limit, one that they do not (RHIC §5.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HbaseJob {
    /// Compression of 70 GB of text cells.
    Compress,
    /// Pictures from 100 MB of scenes.
    Raytrace,
}

impl HbaseJob {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Compress, Self::Raytrace];

    /// Name for tables and scenarios.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compress => "compress",
            Self::Raytrace => "raytrace",
        }
    }

    /// Sized for some half an hour at the best size, as the other jobs; chosen.
    #[must_use]
    pub fn profile(self) -> JobProfile {
        let (tasks, task_cpu_s, task_variation, read_mb_per_cpu_s) = match self {
            Self::Compress => (6_000, 30.0, 0.2, 2.8),
            Self::Raytrace => (12_000, 38.0, 0.3, 0.05),
        };
        let name = self.name().into();
        JobProfile { name, tasks, task_cpu_s, task_variation, read_mb_per_cpu_s, ..JobProfile::default() }
    }
}
