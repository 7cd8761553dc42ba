//! What the papers compare themselves with. Each is a policy as the planner's own are, and none is offered to operators.

pub mod autocontrol;
