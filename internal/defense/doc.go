/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package defense decides. What a release, a batch, a verdict or a deadline
// leads to is computed here, by pure functions of what was observed and of the
// time. Nothing in this package talks to an API server, reads a clock, logs or
// keeps state. The controllers load, call these functions, and apply what
// they return.
//
// # Glossary
//
// Code, log lines, events, conditions and documentation use one word for each
// thing. The name of the word in the API is added where it is another one.
//
// What is defended:
//
//   - Workload: the object whose pods are defended, such as a Deployment.
//   - Defended: the namespace is enrolled, and the workload has not opted
//     out. Only such workloads are written to.
//   - Observe mode: nothing is blocked, halted, held, rolled back
//     or quarantined. What would have been done is reported.
//   - Template: the pod template of a workload.
//   - Version: the name of a template, a hash of its content (spec.reversion).
//   - Release: one change of the template to a version, with a number that only
//     grows. Its record is a ChangeWorkload.
//   - Attempt: one of several releases of the same version. Each one is verified
//     anew, in the same ChangeWorkload.
//   - Baseline: the template that a workload had before its first defended
//     release. It is not verified.
//   - Slipped release: a release that admission did not see. The controller
//     records it later.
//
// How a release is verified:
//
//   - Rollout: what Kubernetes does to replace the pods. It is complete when all
//     pods are updated and available and no old pod is left.
//   - Finished: a pod that was ready for long enough to be verified.
//   - Batch: some finished pods that are verified together (ChangePod).
//   - Order: the release, as AlterShield Server calls it.
//   - Order entry: a step of an order on the server: the order itself, or one batch.
//   - Check: one question about a release or a batch. It has a beginning, a
//     deadline and a verdict. An entry has two: PRE before the step, POST after it.
//   - Verdict: the answer to a check. It passes, or it fails.
//   - Verifier: what answers checks: AlterShield Server, or another provider of
//     package verify.
//   - Silence: there was no verdict by the deadline. It passes, or fails where
//     the setting silence is on.
//   - Correction: a verdict that somebody replaced by hand.
//   - Without checks: a release that goes on without checks, because the server did
//     not take its order in time.
//
// What happens when a release fails:
//
//   - Suspended: the state of a release whose verification failed (Suspend).
//   - Block: the label suspend on the workload. Admission denies releases.
//     It is set, and lifted.
//   - Override: a release that the label ignored-suspend lets pass a block or a
//     quarantine, once. An override release passes a block.
//   - Stale: an override label that was there before the block or the
//     quarantine. It does not count.
//   - Halt: a pause of the rollout that the operator set with a block. It is
//     resumed.
//   - Hold: a rollout that waits for its verdicts.
//   - Stuck: a pod is stuck when it does not come up. It fails when waiting does not
//     help, else it is slow. Its cause says why.
//   - Rollback: the operator sets the template back to an earlier version.
//     It is spontaneous when nobody asked for it.
//   - Undo: a user releases a good version while the current one is blocked
//     or halted because it failed. It passes the block.
//   - Quarantine: versions that were rolled back or left by an undo. Admission
//     denies to release them again.
//   - Limit: the limit of spontaneous rollbacks in the whole cluster.
//   - History: the templates of versions that succeeded, kept as
//     ControllerRevisions, and the baseline.
//   - Proven: a version that has run well for some time after its success.
//   - Known bad: a version that failed, or is in quarantine.
//
// And one verb for each act:
//
//   - Load: read all that a decision needs.
//   - Decide: compute what to do, without reading or writing.
//   - Apply: write what was decided.
//   - Emit: write an event, after the write that it is about.
//   - Notify: tell AlterShield Server about a release or a batch.
//   - Ask: have a verifier answer a check. Poll: ask again.
//   - Record: keep a fact in a status or an annotation.
//   - Report: show a fact to users, by an event, a condition or a metric.
package defense
