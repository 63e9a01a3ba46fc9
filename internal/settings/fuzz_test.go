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

package settings

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// written returns the content of a setting for the values in force; empty if the setting has no content.
func written(name string, s Settings) string {
	switch name {
	case NameBranch:
		return fmt.Sprint(s.BatchSize)
	case NameTimeouts:
		return fmt.Sprintf("wait=%s,pre=%s,post=%s,settle=%s", s.Wait, s.PreTimeout, s.PostTimeout, s.Settle)
	case NameRollback:
		return fmt.Sprintf("after=%s,slow=%s,tolerate=%d%%,proven=%s", s.RollbackAfter, s.RollbackSlow, s.RollbackTolerate, s.RollbackProven)
	case NameHistory:
		return fmt.Sprint(s.History)
	case NameAdmission:
		return s.AdmissionTimeout.String()
	case NameQuarantine:
		return s.QuarantineFor.String()
	case NameLimit:
		return fmt.Sprintf("%d/%s", s.LimitCount, s.LimitWindow)
	case NameHolding:
		what := holdFirst
		if s.Hold == v1alpha1.HoldEveryBatch {
			what = holdEvery
		}
		return fmt.Sprintf("%s,atMost=%s", what, s.HoldAtMost)
	}
	return ""
}

// outOfBounds returns a description of a value out of its bounds; empty if there is none.
func outOfBounds(s Settings) string {
	for what, wrong := range map[string]bool{
		"batch size":   s.BatchSize < 1 || s.BatchSize > MaxBatchSize,
		"wait":         s.Wait < time.Second,
		"pre":          s.PreTimeout < time.Second,
		"post":         s.PostTimeout < time.Second,
		"settle":       s.Settle != 0 && s.Settle < time.Second,
		"after":        s.RollbackAfter < time.Second,
		"slow":         s.RollbackSlow < time.Second,
		"tolerate":     s.RollbackTolerate < 0 || s.RollbackTolerate > 100,
		"proven":       s.RollbackProven < 0 || s.RollbackProven > MaxProven,
		"history":      s.History < 0 || s.History > MaxHistory,
		"admission":    s.AdmissionTimeout < 100*time.Millisecond || s.AdmissionTimeout > MaxAdmissionTimeout,
		"quarantine":   s.QuarantineFor < time.Second || s.QuarantineFor > MaxQuarantine,
		"limit":        s.LimitCount < 1 || s.LimitCount > MaxLimit,
		"limit's time": s.LimitWindow < time.Second || s.LimitWindow > MaxLimitWindow,
		"hold":         s.Hold != v1alpha1.HoldNone && !s.Hold.Holds(),
		"hold's time":  s.HoldAtMost < MinHold || s.HoldAtMost > MaxHold,
	} {
		if wrong {
			return fmt.Sprintf("%s of %+v", what, s)
		}
	}
	return ""
}

// contents returns the seeds of the fuzzers.
func contents() []string {
	return []string{"", "10", "0", "-1", "201", "2m", "1ns", "after=2m,slow=10m,tolerate=10%", "tolerate=0", "proven=0", "proven=61m",
		"tolerate=101%", "after=",
		"wait=60s,pre=120s,post=120s,settle=10s", "settle=0", "settle=0s,settle=1s", "wait=9999999h", "wait=1s,", "=,=",
		"5/10m", "first", "every,atMost=30m", "first,atMost=59s", "every,", "5/", "/10m", "1000/24h",
		"2.9s", "3s", "1e3", "+7", "0x10", "٣", "enabled", "disabled", "true", "false", " 7 ", "\xff", "wait=1s\nx", strings.Repeat("9", 300)}
}

// FuzzSettings checks that each object is either in force, or one line names its wrong field. Values in force are within their
// bounds, and stay the same when they are written as a content and read again.
func FuzzSettings(f *testing.F) {
	for i, content := range contents() {
		for n := i % 3; n < len(names()); n += 3 {
			f.Add(uint8(n), i%5 > 0, content)
		}
	}
	f.Fuzz(func(t *testing.T, n uint8, enable bool, content string) {
		name := names()[int(n)%len(names())]
		o := v1alpha1.OpsConfigInfo{}
		o.Name, o.Spec.Type, o.Spec.Enable, o.Spec.Content = name, known[name].kind, enable, content
		a, s := Assess(&o), FromObjects([]v1alpha1.OpsConfigInfo{o})
		if what := outOfBounds(s); what != "" {
			t.Fatalf("%s %t %q: %s", name, enable, content, what)
		}
		if !a.Accepted {
			if !strings.HasPrefix(a.Message, "spec.content: ") || !strings.Contains(a.Message, "write ") || strings.ContainsAny(a.Message, "\n\r") {
				t.Fatalf("%s %t %q: the message %q does not name the field and the remedy on one line", name, enable, content, a.Message)
			}
			if s != Default() {
				t.Fatalf("%s %t %q is not accepted, and changes settings", name, enable, content)
			}
			return
		}
		if a.InForce == nil || *a.InForce != (v1alpha1.OpsConfigValue{Enable: enable, Content: content}) {
			t.Fatalf("%s %t %q is accepted, in force is %v", name, enable, content, a.InForce)
		}
		o.Spec.Content = written(name, s)
		if got := FromObjects([]v1alpha1.OpsConfigInfo{o}); got != s {
			t.Fatalf("%s %t %q is %+v, written as %q it is %+v", name, enable, content, s, o.Spec.Content, got)
		}
	})
}

// FuzzAnnotations checks that an annotation that cannot be used changes nothing, and that one short line reports it with its
// key. If the operator's object is locked, no annotation can be used.
func FuzzAnnotations(f *testing.F) {
	for i, content := range contents() {
		for n := i % 3; n < len(annotated()); n += 3 {
			f.Add(uint8(n), content, i%5 == 0)
		}
	}
	f.Fuzz(func(t *testing.T, n uint8, value string, locks bool) {
		name := annotated()[int(n)%len(annotated())]
		operator := DefaultObjects("ns")
		for i := range operator {
			operator[i].Spec.Locked = locks && operator[i].Name == name
		}
		without := For(operator, nil, nil)
		annotations := map[string]string{annotation(name): value, v1alpha1.SettingAnnotationPrefix + "unknown": value}
		in := For(operator, nil, annotations)
		if what := outOfBounds(in.Settings); what != "" {
			t.Fatalf("%s=%q: %s", name, value, what)
		}
		for _, problem := range in.Problems {
			if !strings.Contains(problem, annotation(name)) || strings.ContainsAny(problem, "\n\r") || len(problem) > 1024 {
				t.Fatalf("%s=%q: the problem %q does not name it, or is long", name, value, problem)
			}
		}
		if (locks || len(in.Problems) > 0) && in.Settings != without.Settings {
			t.Fatalf("%s=%q cannot be used, and changes settings", name, value)
		}
		if locks && len(in.Problems) == 0 {
			t.Fatalf("%s=%q: no problem reports that the setting is locked", name, value)
		}
		if again := For(operator, nil, map[string]string{annotation(name): brief(value)}); again.Settings != in.Settings {
			t.Fatalf("%s=%q: its brief form has another meaning", name, value)
		}
		altered := DescribeAltered(nil, annotations)
		if strings.ContainsAny(altered, "\n\r") || len(altered) > 1024 || !strings.Contains(altered, name) {
			t.Fatalf("%s=%q: altered %q", name, value, altered)
		}
	})
}
