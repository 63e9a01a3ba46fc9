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

// Package settings turns OpsConfigInfo objects into typed settings. It is pure: it computes the settings in force from the
// objects alone. The status of an invalid object has its last valid value, so that a restart changes nothing.
package settings

import (
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Names of the OpsConfigInfo objects. The name of an object decides which setting it is.
const (
	NameBlocking    = "blocking"
	NameBranch      = "branch"
	NameRollback    = "rollback"
	NameSelfHealing = "selfhealing"
	NameHalting     = "halting"
	NameSilence     = "silence"
	NameTimeouts    = "timeouts"
	NameHistory     = "history"
	NameAdmission   = "admission"
	NameObserve     = "observe"
	NameQuarantine  = "quarantine"
	NameLimit       = "limit"
	NameHolding     = "holding"
	NameEviction    = "eviction"
)

// MaxAdmissionTimeout bounds the time limit of the admission check: the API server waits 3 s for the webhook.
const MaxAdmissionTimeout = 2900 * time.Millisecond

// MaxHistory bounds the remembered versions of a workload.
const MaxHistory = 100

// MaxBatchSize bounds the pods of one batch, so that a ChangePod stays small.
const MaxBatchSize = 200

// Settings are the values in force.
type Settings struct {
	// Blocking blocks a workload that failed verification.
	Blocking bool
	// BatchSize is the number of pods per batch, at least 1.
	BatchSize int32
	// Wait is the longest wait for a full batch.
	Wait time.Duration
	// PreTimeout and PostTimeout are the longest waits for a PRE and a POST verdict.
	PreTimeout, PostTimeout time.Duration
	// Settle is the time for which a pod without a readiness probe has to be Ready before it counts as finished; may be 0.
	Settle time.Duration
	// Halting pauses a rollout that fails.
	Halting bool
	// Rollback rolls back a release whose pods do not come up.
	Rollback bool
	// RollbackAfter is the time for which a pod may fail.
	RollbackAfter time.Duration
	// RollbackSlow is the time for which a pod may start without failing: it waits for a node or a volume, pulls its
	// image, or runs an init container.
	RollbackSlow time.Duration
	// RollbackTolerate is the share of pods that may be stuck once one has finished, in percent of the replicas.
	RollbackTolerate int
	// RollbackProven is the time after Success in which a release whose pods fail is rolled back, and after which a
	// release that ran well is proven; 0 turns such rollbacks off.
	RollbackProven time.Duration
	// RollbackOwnProven means that the workload or its namespace sets RollbackProven.
	RollbackOwnProven bool
	// Quarantine lets the quarantine of a version that never started end by itself: after QuarantineFor, and later each
	// time the version fails again. Otherwise a user has to override it.
	Quarantine    bool
	QuarantineFor time.Duration
	// Limit limits rollbacks that no user requested to LimitCount in LimitWindow, in the whole cluster.
	Limit       bool
	LimitCount  int
	LimitWindow time.Duration
	// Hold selects the batches that a rollout waits for. HoldAtMost is the longest wait from the creation of a pod.
	Hold       v1alpha1.HoldUntil
	HoldAtMost time.Duration
	// HoldDaemonSets: rollouts of DaemonSets are held, too.
	HoldDaemonSets bool
	// Eviction evicts stuck pods of a rolled-back version.
	Eviction bool
	// Observe only records, verifies and reports releases.
	Observe bool
	// SelfHealing rolls back a suspended release.
	SelfHealing bool
	// History is the number of successful versions that are remembered for a rollback.
	History int
	// SilenceFails makes a missing verdict a failure.
	SilenceFails bool
	// ServerSilenceBy is the check of a policy that makes a missing verdict of the server a failure; may be empty.
	ServerSilenceBy string
	// AdmissionCheck asks the server at admission about a release, and waits up to AdmissionTimeout.
	AdmissionCheck   bool
	AdmissionTimeout time.Duration
}

// setting describes one setting.
type setting struct {
	kind v1alpha1.OpsConfigType
	// remark of the default object.
	remark string
	// initial is the value without a valid object.
	initial v1alpha1.OpsConfigValue
	// apply writes a value into the settings. Parts that the value does not name stay. Its error names the remedy.
	apply func(*Settings, v1alpha1.OpsConfigValue) error
	// ofCluster means that only the operator's namespace may have the setting.
	ofCluster bool
	// annotation lets a workload override the setting by an annotation. content allows values of the annotation other than
	// enabled and disabled.
	annotation, content bool
}

var known = map[string]setting{
	NameBlocking: {
		kind:    v1alpha1.TypeBlocking,
		remark:  "block a workload that failed verification",
		initial: v1alpha1.OpsConfigValue{Enable: true},
		apply: func(s *Settings, v v1alpha1.OpsConfigValue) error {
			s.Blocking = v.Enable
			return nil
		},
		annotation: true,
	},
	NameBranch: {
		kind:       v1alpha1.TypeBranch,
		remark:     "verify pods in batches of content; disabled: one by one",
		initial:    v1alpha1.OpsConfigValue{Content: "10"},
		apply:      applyBranch,
		annotation: true, content: true,
	},
	NameTimeouts: {
		kind:       v1alpha1.TypeTimeouts,
		remark:     "how long to wait for a full batch, for a PRE and for a POST verdict, and for a pod without a readiness probe to run",
		initial:    v1alpha1.OpsConfigValue{Enable: true, Content: timeoutsExample},
		apply:      applyTimeouts,
		annotation: true, content: true,
	},
	NameRollback: {
		kind:       v1alpha1.TypeRollback,
		remark:     "roll back a release whose pods do not come up within content, or go down soon after its success",
		initial:    v1alpha1.OpsConfigValue{Enable: true, Content: "2m"},
		apply:      applyRollback,
		annotation: true, content: true,
	},
	NameSelfHealing: {
		kind:   v1alpha1.TypeSelfHealing,
		remark: "roll back a release that is suspended to the newest version that succeeded",
		apply: func(s *Settings, v v1alpha1.OpsConfigValue) error {
			s.SelfHealing = v.Enable
			return nil
		},
		annotation: true,
	},
	NameHalting: {
		kind:    v1alpha1.TypeHalting,
		remark:  "pause a rollout still under way when one of its pods fails, together with the block",
		initial: v1alpha1.OpsConfigValue{Enable: true},
		apply: func(s *Settings, v v1alpha1.OpsConfigValue) error {
			s.Halting = v.Enable
			return nil
		},
		annotation: true,
	},
	NameSilence: {
		kind:   v1alpha1.TypeSilence,
		remark: "no verdict in time counts as a failure",
		apply: func(s *Settings, v v1alpha1.OpsConfigValue) error {
			s.SilenceFails = v.Enable
			return nil
		},
		annotation: true,
	},
	NameHistory: {
		kind:    v1alpha1.TypeHistory,
		remark:  "keep the templates of content successful versions of a workload",
		initial: v1alpha1.OpsConfigValue{Enable: true, Content: "10"},
		apply:   applyHistory,
	},
	NameAdmission: {
		kind:      v1alpha1.TypeAdmission,
		remark:    "ask AlterShield Server at admission whether a version may be released, and wait for content",
		initial:   v1alpha1.OpsConfigValue{Content: "2s"},
		apply:     applyAdmission,
		ofCluster: true,
	},
	NameObserve: {
		kind:   v1alpha1.TypeObserve,
		remark: "record, verify and report releases only; nothing is blocked, paused, rolled back or quarantined",
		apply: func(s *Settings, v v1alpha1.OpsConfigValue) error {
			s.Observe = v.Enable
			return nil
		},
		annotation: true,
	},
	NameQuarantine: {
		kind:    v1alpha1.TypeQuarantine,
		remark:  "deny a version that never started for the time content, longer each time it fails again; disabled: until overridden",
		initial: v1alpha1.OpsConfigValue{Enable: true, Content: "1h"},
		apply:   applyQuarantine,
	},
	NameLimit: {
		kind:      v1alpha1.TypeLimit,
		remark:    "limit the rollbacks that no user requested, in the whole cluster, to a number in a time; disabled: no limit",
		initial:   v1alpha1.OpsConfigValue{Enable: true, Content: limitExample},
		apply:     applyLimit,
		ofCluster: true,
	},
	NameHolding: {
		kind:       v1alpha1.TypeHolding,
		remark:     "a rollout waits for the verdicts on its first pods, or on every batch, for a time at most",
		initial:    v1alpha1.OpsConfigValue{Content: holdFirst},
		apply:      applyHolding,
		annotation: true, content: true,
	},
	NameEviction: {
		kind:    v1alpha1.TypeEviction,
		remark:  "after a rollback of a StatefulSet, evict stuck pods of the rolled-back version, one at a time",
		initial: v1alpha1.OpsConfigValue{Enable: true},
		apply: func(s *Settings, v v1alpha1.OpsConfigValue) error {
			s.Eviction = v.Enable
			return nil
		},
	},
}

// Default returns the settings in force without any object.
func Default() Settings {
	var s Settings
	// The initial values do not name all parts.
	_ = readTimeouts(&s, timeoutsExample)
	_ = readRollback(&s, rollbackExample)
	s.HoldAtMost = DefaultHold
	for _, k := range known {
		// TestDefaults checks that the defaults are valid.
		_ = k.apply(&s, k.initial)
	}
	return s
}

// DefaultObjects returns the objects that the manager creates at its start if they are missing, so that users can edit them.
func DefaultObjects(namespace string) []v1alpha1.OpsConfigInfo {
	var objects []v1alpha1.OpsConfigInfo
	for _, name := range names() {
		k := known[name]
		objects = append(objects, v1alpha1.OpsConfigInfo{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1alpha1.OpsConfigInfoSpec{
				Type: k.kind, Enable: k.initial.Enable, Content: k.initial.Content, Remark: k.remark,
			},
		})
	}
	return objects
}

func names() []string {
	return []string{NameBlocking, NameBranch, NameRollback, NameSelfHealing, NameHalting, NameSilence, NameTimeouts, NameHistory,
		NameAdmission, NameObserve, NameQuarantine, NameLimit, NameHolding, NameEviction}
}

func applyBranch(s *Settings, v v1alpha1.OpsConfigValue) error {
	if !v.Enable {
		s.BatchSize = 1
		return nil
	}
	n, err := strconv.ParseInt(v.Content, 10, 32)
	if err != nil || n < 1 || n > MaxBatchSize {
		return fmt.Errorf("%q is not a number of pods per batch; write a whole number from 1 to %d", v.Content, MaxBatchSize)
	}
	s.BatchSize = int32(n)
	return nil
}

func applyHistory(s *Settings, v v1alpha1.OpsConfigValue) error {
	if !v.Enable {
		s.History = 0
		return nil
	}
	n, err := strconv.Atoi(v.Content)
	if err != nil || n < 1 || n > MaxHistory {
		return fmt.Errorf("%q is not a number of versions; write a whole number from 1 to %d", v.Content, MaxHistory)
	}
	s.History = n
	return nil
}

func applyAdmission(s *Settings, v v1alpha1.OpsConfigValue) error {
	limit := 2 * time.Second
	if v.Enable {
		d, err := time.ParseDuration(v.Content)
		if err != nil || d < 100*time.Millisecond || d > MaxAdmissionTimeout {
			return fmt.Errorf("%q is not a time limit for the admission check; write a duration from 100ms to %s, as in \"2s\"",
				v.Content, MaxAdmissionTimeout)
		}
		limit = d
	}
	s.AdmissionCheck, s.AdmissionTimeout = v.Enable, limit
	return nil
}

// ServerSilence reports whether a missing verdict of the server is a failure, and which setting or check makes it one.
func (s *Settings) ServerSilence() (fails bool, by string) {
	switch {
	case s.SilenceFails:
		return true, "the setting silence"
	case s.ServerSilenceBy != "":
		return true, "the check " + s.ServerSilenceBy
	default:
		return false, ""
	}
}
