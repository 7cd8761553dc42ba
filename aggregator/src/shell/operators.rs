//! The core loop's part in operators' orders. In: requests with the caller's role. Out: orders that the role allows,
//! each audited before it is carried out.

use gleaner_types::event::Event;

use super::Shell;
use crate::audit::cut;
use crate::operators::{Operator, Role};
use gleaner_api::{ApiError, AuditRecord, ErrorCode, Request, Response};

/// Most pairs of user and application of which it is remembered that they hand in response times.
const MOST_RESPONDERS: usize = 1_000;

impl Shell {
    /// Answers a request of whoever is at the socket.
    pub(super) fn api(&mut self, operator: &Operator, request: Request) -> Result<Response, ApiError> {
        let Some(what) = request.order() else {
            return if operator.role >= Role::Reading {
                self.answer(operator, request)
            } else {
                Err(may_not_read(operator))
            };
        };
        if operator.role < Role::Acting {
            let refusal = may_not_act(operator);
            self.denied(operator, what, &refusal);
            return Err(refusal);
        }
        let responder = match &request {
            Request::Respond { application, .. } => Some((operator.uid, application.clone())),
            _ => None,
        };
        if responder.as_ref().is_some_and(|responder| self.audit.responders.contains(responder)) {
            return self.answer(operator, request);
        }
        let mut record = self.record(operator, what);
        if let Err(error) = self.audit.log.append(&record) {
            let message = format!("nothing is done, because it cannot be audited: {error}");
            tracing::error!(%error, "the audit log cannot be written");
            return Err(ApiError { code: ErrorCode::Unavailable, message });
        }
        if self.audit.responders.len() < MOST_RESPONDERS {
            self.audit.responders.extend(responder);
        }
        let result = self.answer(operator, request);
        record.outcome = match &result {
            Ok(Response::Cancelled { job, .. }) => format!("done: {job}"),
            Ok(_) => "done".to_owned(),
            Err(error) => cut(&format!("refused: {error}")),
        };
        self.outcome(record);
        result
    }

    fn record(&mut self, operator: &Operator, what: String) -> AuditRecord {
        let now = self.clock.now();
        AuditRecord {
            time: now.to_string(),
            at_ms: now.0,
            id: self.audit.log.next_id(),
            uid: operator.uid,
            user: operator.user.clone(),
            pid: operator.pid,
            request: cut(&what),
            outcome: "asked".to_owned(),
        }
    }

    /// Records what came of an order, in the audit log and as an event.
    fn outcome(&mut self, mut record: AuditRecord) {
        let now = self.clock.now();
        (record.time, record.at_ms) = (now.to_string(), now.0);
        if let Err(error) = self.audit.log.append(&record) {
            // That it was asked is on the disk.
            tracing::error!(%error, id = record.id, outcome = record.outcome, "an outcome cannot be audited");
        }
        let AuditRecord { uid, user, request, outcome, .. } = record;
        self.log(Event::OperatorRequest { uid, user, request, outcome });
    }

    /// Records an order of somebody who may not give it. Of many only some are.
    fn denied(&mut self, operator: &Operator, what: String, refusal: &ApiError) {
        let now = self.clock.now();
        if self.audit.denied.wait_s(now).is_some() {
            return;
        }
        self.audit.denied.count(now);
        let mut record = self.record(operator, what);
        record.outcome = cut(&format!("refused: {refusal}"));
        self.outcome(record);
    }
}

pub(crate) fn may_not_read(operator: &Operator) -> ApiError {
    let message = format!(
        "user {} (uid {}) may not ask this aggregator; `operators.reading_users` or `operators.reading_groups` in its \
         config would allow it",
        operator.user, operator.uid
    );
    ApiError { code: ErrorCode::Forbidden, message }
}

fn may_not_act(operator: &Operator) -> ApiError {
    let message = format!(
        "user {} (uid {}) may give this aggregator no orders; `operators.acting_users` or `operators.acting_groups` in \
         its config would allow it",
        operator.user, operator.uid
    );
    ApiError { code: ErrorCode::Forbidden, message }
}
