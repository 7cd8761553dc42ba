//! What the columns of lists mean, for the end of their help. Data only; the command line shows it.

/// Of `gleaner hosts`.
pub(super) const HOSTS: &str = "\
Columns; CPU is in cores, and a number in brackets is explained below the table:
  STATE            acting: it may run a volunteer; observing: it only reports; held: an operator stopped its volunteer;
                   left: its agent was stopped; lost: it does not report, and did not say why; revoked: by an operator
  BUSY             what everything on it uses
  FOREGROUND       what its guests use and the services that its config names, which must not be slowed down; with neither,
                   everything but the volunteer, and OTHER is `-`
  OTHER            what is neither foreground nor the volunteer
  RESIDUAL         what the foreground is predicted to leave: the likely amount / the promise, which is to be there at least
  VOLUNTEER        what the volunteer uses, the container for batch work
  ALLOWED          the most that the guard lets the volunteer use now; the guard is the part of the agent that protects the
                   foreground
  HARM             how much slower the foreground is because of the volunteer
  PROMISES BROKEN  how often less was left than was promised, of how often that may be (`forecast.risk`), and in brackets in
                   how many windows of the last day, such as `0.7 % of 1 % (288)`; without the second figure, of a method
                   or an agent that states no risk, of how many promises since the agent started
  AGE              the time since its last report
  JOB              the job that its volunteer works for";

/// Of `gleaner explain`.
pub(super) const EXPLAIN: &str = "\
Columns of candidates; CPU is in cores, and an arrow marks the one that was chosen:
  SIZE        volunteers beside the dedicated hosts, or slots of one machine
  POTENTIAL   what their foregrounds should leave together
  PREDICTED   what the workers should use of it; less before larger sizes were seen, and where disks hold them up
  DONE IN     when the job would be done, and COST what it would have cost by then
  MEETS GOAL  whether that meets the goal with the margin that the reason names
  SCORE       what the search compares: the least is the best (docs/plan.md)
\"bound by\" names what decided: the goal, or what no size can do better (a deadline that is out of reach, no more hosts).
In its first minute a job's forecasts are cautious, and may say that its goal is at risk.";

/// Of `gleaner job list`.
pub(super) const JOBS: &str = "\
Columns:
  GOAL          what it should achieve
  TASKS         tasks that are done, of all
  DONE          the part of its work that is done, running tasks counted in part
  FAILED        tasks given up after their last attempt
  VOLUNTEERS    hosts, or slots of its machine, that work for it beside its dedicated ones; a slot is room for one task
  SHARE         hosts or slots that it may have, of those it wants, where several jobs want the same ones
  AHEAD         how far it is ahead of fair sharing; less than 0 is behind
  COST          of its workers by the hour, at the prices of its file or options; without them $1.00 a dedicated one, $0.42 a volunteer
  CORE-SECONDS  CPU time that its volunteers have used; of engine local its dedicated slots too";

/// Of `gleaner app list`.
pub(super) const APPLICATIONS: &str = "\
Columns:
  STATE        met: within the target; above: by up to a tenth; missed: by more; idle: nobody asked anything; late: the last
               answer is too old; missing, absurd: its source says nothing, or nothing that can be; waiting: nothing yet
  TARGET       the mean response time that it should have
  RESPONSE     the one that it had last, and in OF TARGET in percent of the target
  AGE          how long ago that was said
  SHARES       what its tiers have of their hosts";

/// Of `gleaner advise`.
pub(super) const ADVISE: &str = "\
Columns; CPU is in cores:
  STATE     ready: it may act; observing: it may not yet; held: an operator stopped its volunteer; unable: it can give nothing
  PROMISED  what its foreground will leave at least, in the mean over the time, but for the risk
  EXPECTED  what it is likely to leave
  IN USE    what its volunteer uses of that already
  MEMORY    memory that it will leave
  RESTS ON  for how many spans of that length the host was watched; a guess, where the risk would need more; its own promise,
            where its agent promises for as long and at that risk all the time
  JOB       the job that its volunteer works for";
