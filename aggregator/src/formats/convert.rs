//! Converters: one function per format makes a stored value of it one of the next format. In: a document's kind, and a
//! value with the names of its format. Out: the value with the names of the next, or why it does not fit. Called by
//! [`super::read`].

use super::document::Document;
use super::value::{Mismatch, Value};

/// From 2 to 3.
///
/// - A job of format 2 had one variant per engine; now it has the engine's name, its options as JSON, and its workers.
/// - Format 2 held every host's last report. A host reports again as soon as it is connected, and until then its report
///   says nothing that is decided by: what reports look like may change without a converter of their own.
/// - Format 2 knew three more controllers of one resource, for comparison. Their applications go on with self-tuning fuzzy
///   control, which moves the same share and knows nothing yet.
/// - The controller's state has three owners: `hosts`, `jobs` and `applications`. What a job learned of its workers depends
///   on what they are.
pub(super) fn from_2(document: Document, mut value: Value) -> Result<Value, Mismatch> {
    let controller = match (document, &mut value) {
        (Document::Admissions, _) => return Ok(value),
        (Document::Replicated, both) => both.items()?.next().ok_or_else(|| Mismatch::new("an empty tuple"))?,
        (Document::Controller, controller) => controller,
    };
    for host in controller.field("hosts")?.items()? {
        *host.field("report")? = Value::Option(None);
        host.rename("told", "commanded")?;
        host.rename("settled", "volunteer_known")?;
    }
    for job in controller.field("jobs")?.items()? {
        spec_from_2(job.field("status")?.field("spec")?)?;
        workers_from_2(job)?;
    }
    for application in controller.field("applications")?.items()? {
        application_from_2(application)?;
    }
    controller.rename("hosts", "known")?;
    let hosts = controller.part(&["version", "known", "holds"])?;
    controller.add("hosts", hosts)?;
    controller.rename("jobs", "list")?;
    let jobs = controller.part(&["list"])?;
    controller.add("jobs", jobs)?;
    controller.rename("applications", "managed")?;
    let applications = controller.part(&["managed", "reserved", "next_control", "asked"])?;
    controller.add("applications", applications)?;
    Ok(value)
}

fn application_from_2(application: &mut Value) -> Result<(), Mismatch> {
    let control = application.field("status")?.field("spec")?.field("control")?;
    let Value::Variant(name, None) = control else { return Err(Mismatch::new("no control")) };
    if !["adaptive_pi", "kalman", "arma"].contains(name) {
        return Ok(());
    }
    *control = Value::Variant("stfc", None);
    let nothing_known = vec![("lambda", Value::Float(2.0)), ("last_error", Value::Option(None))];
    let stfc = Value::Variant("stfc", Some(Box::new(Value::Record(nothing_known))));
    *application.field("control")? = Value::Variant("Single", Some(Box::new(stfc)));
    Ok(())
}

/// What a job learned of its workers.
fn workers_from_2(job: &mut Value) -> Result<(), Mismatch> {
    let slots = job.part(&["yields", "potential"])?;
    let workers = match job.take("cluster")? {
        Value::Option(Some(mut cluster)) => {
            let exploration = cluster.part(&["growth", "saturation", "profile_disk"])?;
            cluster.add("exploration", exploration)?;
            cluster.rename("told", "engine_slots")?;
            Value::Variant("Hosts", Some(cluster))
        }
        _ => Value::Variant("Slots", Some(Box::new(slots))),
    };
    job.add("workers", workers)
}

/// What was submitted.
fn spec_from_2(spec: &mut Value) -> Result<(), Mismatch> {
    let (kind, mut engine) = spec.take("engine")?.variant()?;
    let (name, options, workers) = match kind {
        "local" => {
            let workers = engine.part(&["host", "tasks", "dedicated_slots", "max_slots"])?;
            let options = engine.part(&["max_attempts", "task_timeout_s", "working_dir", "output_dir"])?;
            (kind, options, Value::Variant("slots", Some(Box::new(workers))))
        }
        _ => {
            let (name, options) = engine.take("system")?.variant()?;
            (name, options, Value::Variant("hosts", Some(Box::new(engine))))
        }
    };
    let options = Value::Text(options.to_json().to_string());
    let engine = vec![("name", Value::Text(name.to_owned())), ("options", options)];
    spec.add("engine", Value::Record(engine))?;
    spec.add("workers", workers)
}

/// From 3 to 4.
///
/// - A job of format 3 could name a baseline of the papers for its sizing. It goes on sized by the model, which knows
///   nothing of the baseline; a fixed number of volunteers becomes the most that the job may have.
/// - Reports of format 3 said nothing of harm. As from 2 to 3, a host's last report is left out.
pub(super) fn from_3(document: Document, mut value: Value) -> Result<Value, Mismatch> {
    let controller = match (document, &mut value) {
        (Document::Admissions, _) => return Ok(value),
        (Document::Replicated, both) => both.items()?.next().ok_or_else(|| Mismatch::new("an empty tuple"))?,
        (Document::Controller, controller) => controller,
    };
    for host in controller.field("hosts")?.field("known")?.items()? {
        *host.field("report")? = Value::Option(None);
    }
    for job in controller.field("jobs")?.field("list")?.items()? {
        sizing_from_3(job.field("status")?.field("spec")?)?;
        if let Value::Variant(name, Some(cluster)) = job.field("workers")?
            && *name == "Hosts"
        {
            cluster.part(&["fuzzy", "mark"])?;
        }
    }
    Ok(value)
}

fn sizing_from_3(spec: &mut Value) -> Result<(), Mismatch> {
    let (policy, mut content) = spec.take("sizing")?.variant()?;
    match policy {
        "adaptive" | "threshold" | "fuzzy" => Ok(()),
        "fixed" => {
            let volunteers = content.take("volunteers")?;
            if let Value::Variant(_, Some(workers)) = spec.field("workers")?
                && let Ok(most) = workers.field("max_volunteers")
            {
                *most = Value::Option(Some(Box::new(fewer(most, volunteers))));
            }
            Ok(())
        }
        other => Err(Mismatch::new(format!("no sizing policy is called `{other}`"))),
    }
}

/// The smaller of a number that may be missing and one that is there.
fn fewer(most: &Value, volunteers: Value) -> Value {
    match (most, &volunteers) {
        (Value::Option(Some(most)), Value::Unsigned(wanted)) if matches!(**most, Value::Unsigned(most) if most < *wanted) => {
            (**most).clone()
        }
        _ => volunteers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(policy: &'static str, content: Option<u64>, most: Option<u64>) -> Value {
        let record = |name: &'static str, value| Value::Record(vec![(name, value)]);
        let content = content.map(|number| Box::new(record("volunteers", Value::Unsigned(number))));
        let most = Value::Option(most.map(|most| Box::new(Value::Unsigned(most))));
        let workers = Value::Variant("hosts", Some(Box::new(record("max_volunteers", most))));
        let sizing = Value::Variant(policy, content);
        Value::Record(vec![("sizing", sizing), ("workers", workers)])
    }

    fn most_after(mut spec: Value) -> Result<Option<u64>, Mismatch> {
        sizing_from_3(&mut spec)?;
        assert!(spec.field("sizing").is_err());
        let (_, mut workers) = spec.take("workers")?.variant()?;
        workers.take("max_volunteers")?.into_type()
    }

    #[test]
    fn a_baseline_is_left_and_a_fixed_number_becomes_the_most() {
        assert_eq!(most_after(spec("adaptive", None, Some(4))).unwrap(), Some(4));
        assert_eq!(most_after(spec("threshold", None, None)).unwrap(), None);
        assert_eq!(most_after(spec("fixed", Some(3), None)).unwrap(), Some(3));
        assert_eq!(most_after(spec("fixed", Some(3), Some(2))).unwrap(), Some(2));
        assert_eq!(most_after(spec("fixed", Some(3), Some(9))).unwrap(), Some(3));
        let unknown = most_after(spec("psychic", None, None)).unwrap_err();
        assert!(unknown.to_string().contains("`psychic`"), "{unknown}");
    }
}
