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

package rules

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/utils/clock"
)

// endless is an expression that ignores the end of its time.
type endless struct {
	cel.Program
	end chan struct{}
}

func (e endless) ContextEval(context.Context, any) (ref.Val, *cel.EvalDetails, error) {
	<-e.end
	return nil, nil, errors.New("it ended")
}

// TestAbandoned: an evaluation that does not end keeps its slot, and its caller goes on. The
// third evaluation of a generation sets its policy aside, unless the policy is the operator's.
func TestAbandoned(t *testing.T) {
	for name, operators := range map[string]bool{"of a namespace": false, "of the operator": true} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { abandon(t, operators) }) })
	}
}

func abandon(t *testing.T, operators bool) {
	var set []Policy
	w := NewWatch(clock.RealClock{}, func(of Policy, until time.Time) {
		if time.Until(until) != AsideFor {
			t.Errorf("until %s", until)
		}
		set = append(set, of)
	})
	end, released := make(chan struct{}), 0
	stuck := &Program{scope: OfRequest, rules: []expression{{program: endless{end: end}}}}
	quick, problem := compile(check("true"), OfRequest)
	if problem != "" {
		t.Fatal(problem)
	}
	of := Policy{Namespace: "shop", Name: "p", UID: "1", Generation: 1, Operators: operators}
	for range 3 {
		began := time.Now()
		_, err := w.Evaluate(t.Context(), of, stuck, Input{}, func() { released++ })
		if !errors.Is(err, ErrAbandoned) || time.Since(began) > 3*time.Second {
			t.Fatalf("after %s: %v", time.Since(began), err)
		}
	}
	if released != 0 {
		t.Errorf("%d slots are free", released)
	}
	evaluate := func(of Policy) error {
		_, err := w.Evaluate(t.Context(), of, quick, Input{}, func() { released++ })
		return err
	}
	err, aside := evaluate(of), !operators
	if aside != (err != nil && strings.Contains(err.Error(), "is set aside until")) || aside != (len(set) == 1) {
		t.Errorf("error %v, set aside %v", err, set)
	}
	next := of
	next.Generation = 2
	if err := evaluate(next); err != nil {
		t.Errorf("another generation: %v", err)
	}
	<-time.After(AsideFor)
	if err := evaluate(of); err != nil {
		t.Errorf("after its time: %v", err)
	}
	close(end)
	synctest.Wait()
	if released != 6 {
		t.Errorf("%d slots were released", released)
	}
}

// TestEvaluationFails: an evaluation that panics returns an error, and releases its slot.
func TestEvaluationFails(t *testing.T) {
	released := make(chan struct{}, 1)
	w := NewWatch(clock.RealClock{}, nil)
	empty := &Program{scope: OfRequest, rules: []expression{{}}}
	_, err := w.Evaluate(t.Context(), Policy{}, empty, Input{}, func() { released <- struct{}{} })
	if err == nil || !strings.Contains(err.Error(), "the evaluation of its rules failed") {
		t.Errorf("error %v", err)
	}
	<-released
}
