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

package observer

import "fmt"

// Invariant is the name of a rule that holds whatever happens.
type Invariant string

const (
	// RollbackCause (S1): nothing is rolled back without a recorded cause for exactly this release.
	RollbackCause Invariant = "S1"
	// VerdictOnce (S2): a verdict is applied at most once, and only to its own attempt of its own
	// version of its own workload.
	VerdictOnce Invariant = "S2"
	// BlockHolds (S3): while blocked, a template changes only by the operator or
	// an override.
	BlockHolds Invariant = "S3"
	// OnlyManaged (S4): nothing is written about workloads that are not defended.
	OnlyManaged Invariant = "S4"
	// OwnPause (S5): the operator un-pauses only what it paused.
	OwnPause Invariant = "S5"
	// OwnFields (S6): the operator changes only its own fields.
	OwnFields Invariant = "S6"
	// EachPodOnce (S7): no pod is in two batches of one attempt, no finished pod
	// is left out.
	EachPodOnce Invariant = "S7"
	// NoVerdictLost (S8): every acknowledged verdict is stored.
	NoVerdictLost Invariant = "S8"
	// NoHasty (S9): without a request, no version is rolled back that makes progress, or because of
	// pods on one node alone, or beyond the setting limit.
	NoHasty Invariant = "S9"
	// HoldHarmless (S10): a hold lowers no capacity below the bound of the strategy, and every
	// field that it changed is given back.
	HoldHarmless Invariant = "S10"
	// Bounded (S11): objects, annotations and requests of the operator are bounded by pods
	// and settings, not by time.
	Bounded Invariant = "S11"
	// HoldShut (S12): during a hold, no pod of an unverified wave becomes available, and no more
	// pods are in flight than the strategy allows.
	HoldShut Invariant = "S12"
	// Printable (S13): no text that the operator writes for people has control characters, or a
	// command with an unquoted word that a shell would interpret.
	Printable Invariant = "S13"
	// TerminalStays (L1): every release reaches a terminal status and stays there.
	TerminalStays Invariant = "L1"
	// SilenceEnds (L2): a check without a verdict ends at its deadline, and its pods pass or
	// fail as the setting silence says.
	SilenceEnds Invariant = "L2"
	// RestsQuiet (L3): the operator writes a bounded number of times about a workload that no
	// other writer changes.
	RestsQuiet Invariant = "L3"
	// NothingHangs (L4): no deleted object stays because of the operator.
	NothingHangs Invariant = "L4"
	// RightsSuffice: the operator sends no request that it has no right to.
	RightsSuffice Invariant = "rights"
)

// Violation is an invariant that did not hold.
type Violation struct {
	Invariant Invariant
	// Namespace is the namespace of the object; empty if it is cluster-scoped.
	Namespace string
	// Object is kind, namespace and name.
	Object string
	// Versions are the resource versions before and after.
	Versions string
	Message  string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s: %s (%s): %s", v.Invariant, v.Object, v.Versions, v.Message)
}

// finding is a violation whose object is yet to be named.
type finding struct {
	invariant Invariant
	message   string
}

func found(i Invariant, format string, args ...any) finding {
	return finding{i, fmt.Sprintf(format, args...)}
}

// Writer is the kind of writer of a version of an object.
type Writer int

const (
	// Unknown means that the audit log does not name the writer.
	Unknown Writer = iota
	// Operator means one of the operator's replicas.
	Operator
	// Other means any other writer.
	Other
)
