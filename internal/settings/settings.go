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

// Package settings turns OpsConfigInfo objects into typed settings. It is pure:
// what is in force is computed from the objects alone, the last valid value of
// an object that was made invalid included, so that a restart changes nothing.
package settings

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Names of the OpsConfigInfo objects; the name decides which setting an object
// is.
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
)

// MaxAdmissionTimeout bounds the time limit of the admission check: the API
// server waits 3 s for the webhook.
const MaxAdmissionTimeout = 2900 * time.Millisecond

// MaxHistory bounds the versions that are remembered of a workload.
const MaxHistory = 100

// MaxBatchSize bounds the pods of one batch, so that a ChangePod stays small.
const MaxBatchSize = 200

// Settings are the values in force.
type Settings struct {
	// Blocking: block a workload that failed verification.
	Blocking bool
	// BatchSize is the number of pods per batch, at least 1.
	BatchSize int32
	// Wait is how long a batch waits to be full.
	Wait time.Duration
	// PreTimeout and PostTimeout are how long a PRE and a POST verdict is
	// waited for.
	PreTimeout, PostTimeout time.Duration
	// Halting: pause a rollout that is under way when it fails.
	Halting bool
	// Rollback: roll back a release whose pods do not come up, once one of them
	// has not for RollbackAfter.
	Rollback      bool
	RollbackAfter time.Duration
	// SelfHealing: roll back a release that is suspended.
	SelfHealing bool
	// History is how many successful versions are remembered for a rollback.
	History int
	// SilenceFails: no verdict in time counts as a failure.
	SilenceFails bool
	// AdmissionCheck: ask the server at admission whether a version may be
	// released, and wait for AdmissionTimeout.
	AdmissionCheck   bool
	AdmissionTimeout time.Duration
}

// setting is what is known of one setting.
type setting struct {
	kind v1alpha1.OpsConfigType
	// remark of the default object.
	remark string
	// initial is the value without an object, or with one that never was valid.
	initial v1alpha1.OpsConfigValue
	// apply writes a value into the settings; its error names the remedy.
	apply func(*Settings, v1alpha1.OpsConfigValue) error
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
	},
	NameBranch: {
		kind:    v1alpha1.TypeBranch,
		remark:  "verify pods in batches of content; disabled: one by one",
		initial: v1alpha1.OpsConfigValue{Content: "10"},
		apply:   applyBranch,
	},
	NameTimeouts: {
		kind:    v1alpha1.TypeTimeouts,
		remark:  "how long a batch waits to be full, and a PRE and a POST verdict is waited for",
		initial: v1alpha1.OpsConfigValue{Enable: true, Content: "wait=60s,pre=120s,post=120s"},
		apply:   applyTimeouts,
	},
	NameRollback: {
		kind:    v1alpha1.TypeRollback,
		remark:  "roll back a release whose pods do not come up within content",
		initial: v1alpha1.OpsConfigValue{Enable: true, Content: "2m"},
		apply:   applyRollback,
	},
	NameSelfHealing: {
		kind:   v1alpha1.TypeSelfHealing,
		remark: "roll back a release that is suspended to the newest version that succeeded",
		apply: func(s *Settings, v v1alpha1.OpsConfigValue) error {
			s.SelfHealing = v.Enable
			return nil
		},
	},
	NameHalting: {
		kind:    v1alpha1.TypeHalting,
		remark:  "pause a rollout still under way when one of its pods fails, together with the block",
		initial: v1alpha1.OpsConfigValue{Enable: true},
		apply: func(s *Settings, v v1alpha1.OpsConfigValue) error {
			s.Halting = v.Enable
			return nil
		},
	},
	NameSilence: {
		kind:   v1alpha1.TypeSilence,
		remark: "no verdict in time counts as a failure",
		apply: func(s *Settings, v v1alpha1.OpsConfigValue) error {
			s.SilenceFails = v.Enable
			return nil
		},
	},
	NameHistory: {
		kind:    v1alpha1.TypeHistory,
		remark:  "remember the templates of content successful versions of a workload",
		initial: v1alpha1.OpsConfigValue{Enable: true, Content: "10"},
		apply:   applyHistory,
	},
	NameAdmission: {
		kind:    v1alpha1.TypeAdmission,
		remark:  "ask AlterShield Server at admission whether a version may be released, and wait for content",
		initial: v1alpha1.OpsConfigValue{Content: "2s"},
		apply:   applyAdmission,
	},
}

// Default is what is in force without any object.
func Default() Settings {
	s := Settings{
		BatchSize:     1,
		Wait:          60 * time.Second,
		PreTimeout:    120 * time.Second,
		PostTimeout:   120 * time.Second,
		RollbackAfter: defaultRollbackAfter,
	}
	for _, k := range known {
		// The defaults are valid; a test says so.
		_ = k.apply(&s, k.initial)
	}
	return s
}

// DefaultObjects are the objects created at start where they are missing, so
// that there is something to edit.
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

// FromObjects computes the settings in force from the objects of the operator's
// namespace.
func FromObjects(objects []v1alpha1.OpsConfigInfo) Settings {
	s := Default()
	for i := range objects {
		o := &objects[i]
		if a := Assess(o); a.InForce != nil {
			_ = known[o.Name].apply(&s, *a.InForce) // assessed as valid
		}
	}
	return s
}

// Assessment says whether an object's spec is in force and what is.
type Assessment struct {
	// Accepted: spec is in force.
	Accepted bool
	// Reason and Message explain, with the remedy where spec is not accepted.
	Reason, Message string
	// InForce is the value of this object in force; nil when the object is
	// ignored or never was valid, and the default is in force.
	InForce *v1alpha1.OpsConfigValue
}

// Assess judges one object.
func Assess(o *v1alpha1.OpsConfigInfo) Assessment {
	k, ok := known[o.Name]
	switch {
	case !ok:
		return Assessment{Reason: v1alpha1.ReasonUnknownName,
			Message: fmt.Sprintf("metadata.name: no setting is named %q, the object is ignored; delete it, or name it one of %s", o.Name, strings.Join(names(), ", "))}
	case k.kind != o.Spec.Type:
		a := lastValid(o)
		a.Reason = v1alpha1.ReasonTypeMismatch
		a.Message = fmt.Sprintf("spec.type: the setting %q is of type %s, not %s; spec is ignored%s", o.Name, k.kind, o.Spec.Type, a.Message)
		return a
	}
	value := v1alpha1.OpsConfigValue{Enable: o.Spec.Enable, Content: o.Spec.Content}
	var scratch Settings
	if err := k.apply(&scratch, value); err != nil {
		a := lastValid(o)
		a.Reason = v1alpha1.ReasonInvalidContent
		a.Message = fmt.Sprintf("spec.content: %v%s", err, a.Message)
		return a
	}
	return Assessment{Accepted: true, Reason: v1alpha1.ReasonInForce, Message: "spec is in force", InForce: &value}
}

// lastValid is the value in force for an object whose spec is not valid, and
// words that say so.
func lastValid(o *v1alpha1.OpsConfigInfo) Assessment {
	if v := o.Status.InForce; v != nil {
		var scratch Settings
		if known[o.Name].apply(&scratch, *v) == nil {
			return Assessment{InForce: v, Message: fmt.Sprintf("; in force is the last valid value, enable=%t content=%q", v.Enable, v.Content)}
		}
	}
	return Assessment{Message: "; in force is the default"}
}

func names() []string {
	return []string{NameBlocking, NameBranch, NameRollback, NameSelfHealing, NameHalting, NameSilence, NameTimeouts, NameHistory, NameAdmission}
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

// defaultRollbackAfter and minRollbackAfter are the default and the least
// threshold of a rollback: a pod needs some time to start.
const (
	defaultRollbackAfter = 2 * time.Minute
	minRollbackAfter     = time.Second
)

func applyRollback(s *Settings, v v1alpha1.OpsConfigValue) error {
	after := defaultRollbackAfter
	if v.Enable {
		d, err := time.ParseDuration(v.Content)
		if err != nil || d < minRollbackAfter {
			return fmt.Errorf("%q is not a time in which a pod has to come up; write a duration of at least %s, as in \"2m\"", v.Content, minRollbackAfter)
		}
		after = d
	}
	s.Rollback, s.RollbackAfter = v.Enable, after
	return nil
}

func applyTimeouts(s *Settings, v v1alpha1.OpsConfigValue) error {
	s.Wait, s.PreTimeout, s.PostTimeout = 60*time.Second, 120*time.Second, 120*time.Second
	if !v.Enable {
		return nil
	}
	return parseTimeouts(s, v.Content)
}

// parseTimeouts reads the thresholds that a text names; others stay.
func parseTimeouts(s *Settings, content string) error {
	read := *s
	fields := map[string]*time.Duration{"wait": &read.Wait, "pre": &read.PreTimeout, "post": &read.PostTimeout}
	for part := range strings.SplitSeq(content, ",") {
		key, text, _ := strings.Cut(strings.TrimSpace(part), "=")
		field, ok := fields[key]
		if !ok {
			return fmt.Errorf("%q names no threshold, or one twice; write wait, pre and post, each at most once, as in \"wait=60s,pre=120s,post=120s\"", part)
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Second {
			return fmt.Errorf("%q is not a duration of at least 1s; write it as in \"wait=60s,pre=120s,post=120s\"", part)
		}
		*field = d
		delete(fields, key)
	}
	*s = read
	return nil
}

func applyAdmission(s *Settings, v v1alpha1.OpsConfigValue) error {
	limit := 2 * time.Second
	if v.Enable {
		d, err := time.ParseDuration(v.Content)
		if err != nil || d < 100*time.Millisecond || d > MaxAdmissionTimeout {
			return fmt.Errorf("%q is not a time limit for the admission check; write a duration from 100ms to %s, as in \"2s\"", v.Content, MaxAdmissionTimeout)
		}
		limit = d
	}
	s.AdmissionCheck, s.AdmissionTimeout = v.Enable, limit
	return nil
}

// maxOverride is how much of an annotation is read, in bytes.
const maxOverride = 100

// disabled turns a setting off for a workload.
const disabled = "disabled"

// overrides are the settings a workload may override with an annotation of
// their name.
var overrides = map[string]func(s *Settings, value string) error{
	NameBranch: func(s *Settings, value string) error {
		return applyBranch(s, v1alpha1.OpsConfigValue{Enable: value != disabled, Content: value})
	},
	NameRollback: func(s *Settings, value string) error {
		return applyRollback(s, v1alpha1.OpsConfigValue{Enable: value != disabled, Content: value})
	},
	NameSilence: func(s *Settings, value string) error {
		switch value {
		case "enabled", "true":
			s.SilenceFails = true
		case disabled, "false":
			s.SilenceFails = false
		default:
			return fmt.Errorf("%q is neither \"enabled\" nor \"disabled\"", value)
		}
		return nil
	},
	NameTimeouts: func(s *Settings, value string) error {
		if value == disabled {
			return applyTimeouts(s, v1alpha1.OpsConfigValue{})
		}
		return parseTimeouts(s, value)
	},
}

// Override applies what a workload overrides with its annotations. Each problem
// is one line with its remedy; what is in force in general applies then.
func Override(s Settings, annotations map[string]string) (_ Settings, problems []string) {
	for _, name := range []string{NameBranch, NameRollback, NameSilence, NameTimeouts} {
		key := v1alpha1.SettingAnnotationPrefix + name
		value, ok := annotations[key]
		if !ok {
			continue
		}
		// A value may be of any length; what is told of it is not.
		value = strings.ToValidUTF8(value[:min(len(value), maxOverride)], "")
		if err := overrides[name](&s, strings.TrimSpace(value)); err != nil {
			problems = append(problems, fmt.Sprintf("annotation %s: %v; the OpsConfigInfo %q applies", key, err, name))
		}
	}
	return s, problems
}

// OverridesDiffer says that two sets of annotations override settings
// differently.
func OverridesDiffer(a, b map[string]string) bool {
	for name := range overrides {
		key := v1alpha1.SettingAnnotationPrefix + name
		va, inA := a[key]
		vb, inB := b[key]
		if va != vb || inA != inB {
			return true
		}
	}
	return false
}
