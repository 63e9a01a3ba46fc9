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

package webhooks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/network"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// forged returns a forged release of a workload; each n is another version.
func forged(name, uid string, n int) admission.Request {
	object := func(test string) string {
		return manifest(
			fmt.Sprintf(`{"name":%q,"namespace":"default","uid":%q,"resourceVersion":"77"}`, name, uid),
			fmt.Sprintf(`{"app":"sleep","test":%q}`, test))
	}
	req := makeRequest(object("123"), object(fmt.Sprint("forged-", n)))
	req.UID, req.Name = types.UID(fmt.Sprint(name, uid, n)), name
	return req
}

// created returns a request that creates a workload.
func created(name string) admission.Request {
	req := makeRequest("", manifest(fmt.Sprintf(`{"name":%q,"namespace":"default"}`, name), sleepLabels))
	req.UID, req.Name = types.UID(name), name
	return req
}

// TestForgedReviews: forged requests use up neither the calls to the server nor the budget
// of other workloads.
func TestForgedReviews(t *testing.T) {
	const many = 1000
	sizes := defaultBudgets()
	for name, test := range map[string]struct {
		forged func(n int) admission.Request
		stored bool
		most   int
	}{
		"for a stored workload": {
			forged: func(n int) admission.Request { return forged("victim", "victim-uid", n) },
			stored: true, most: sizes.stored.rates.Each.Burst,
		},
		"for a workload that is not stored": {
			forged: func(n int) admission.Request { return forged("victim", fmt.Sprint(n), n) },
			most:   sizes.others.rates.Each.Burst,
		},
		"for many workloads that are not stored": {
			forged: func(n int) admission.Request { return forged(fmt.Sprint("none-", n), fmt.Sprint(n), n) },
			most:   sizes.others.rates.Each.Burst,
		},
		"that create workloads": {
			forged: func(n int) admission.Request { return created(fmt.Sprint("new-", n)) },
			most:   sizes.others.rates.Each.Burst,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeChecker{}
			o := f.options()
			o.Clock = clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
			o.Stored = func(_ context.Context, _ workload.Kind, _, name string, _ types.UID) (bool, error) {
				return name == "other" || test.stored, nil
			}
			h := mutatingOf(o, deployments)
			for n := range many {
				if answer := h.Handle(t.Context(), test.forged(n)); !answer.Allowed {
					t.Fatalf("denied: %v", answer.Result)
				}
			}
			if asked := len(f.asked()); asked != test.most {
				t.Errorf("the server was asked %d times, want %d", asked, test.most)
			}
			before := len(f.asked())
			answer := h.Handle(t.Context(), forged("other", "other-uid", 0))
			if len(f.asked()) != before+1 || len(answer.Warnings) > 0 {
				t.Errorf("the server was not asked about another workload: %v", answer.Warnings)
			}
		})
	}
}

// TestKindsShareBudgets: requests about several kinds spend the same budget.
func TestKindsShareBudgets(t *testing.T) {
	f := &fakeChecker{}
	o := f.options()
	o.Clock = clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	check := newGate(o)
	first, second := newMutating(o, deployments, check), newMutating(o, fleets, check)
	for n := range 100 {
		first.Handle(t.Context(), created(fmt.Sprint("new-", n)))
		second.Handle(t.Context(), fleets.of(created(fmt.Sprint("new-", n))))
	}
	if asked, most := len(f.asked()), defaultBudgets().others.rates.Each.Burst; asked != most {
		t.Errorf("the server was asked %d times, want %d", asked, most)
	}
}

// TestChart: the server is asked about all workloads that a user creates at once.
func TestChart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeChecker{answer: func(context.Context, Question) (Answer, error) {
			time.Sleep(200 * time.Millisecond) //nolint:forbidigo // in a bubble with a fake clock
			return Answer{Passes: true}, nil
		}}
		h := mutatingOf(f.options(), deployments)
		var group sync.WaitGroup
		for n := range 20 {
			group.Go(func() {
				if answer := h.Handle(t.Context(), created(fmt.Sprint("part-", n))); !answer.Allowed || len(answer.Warnings) > 0 {
					t.Errorf("workload %d: %v, %v", n, answer.Result, answer.Warnings)
				}
			})
		}
		group.Wait()
		if asked := len(f.asked()); asked != 20 {
			t.Errorf("asked about %d workloads, want 20", asked)
		}
	})
}

// TestTooManyQuestions: a release over the budget passes with a warning, as without an answer.
func TestTooManyQuestions(t *testing.T) {
	f := &fakeChecker{}
	o := f.options()
	o.Clock = clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	o.Stored = func(context.Context, workload.Kind, string, string, types.UID) (bool, error) { return true, nil }
	h := mutatingOf(o, deployments)
	var last admission.Response
	for n := range 100 {
		last = h.Handle(t.Context(), forged("victim", "uid", n))
	}
	want := "AlterShield Server is not asked: too many questions about this workload; released without its check"
	if len(last.Warnings) != 1 || last.Warnings[0] != want {
		t.Errorf("warnings %q, want %q", last.Warnings, want)
	}
}

// TestDenialHolds: a release that the server denies does not pass if it is tried often, or
// several times at once.
func TestDenialHolds(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(context.Context, Question) (Answer, error)
		try    func(handle func(n int))
	}{
		"one by one": {answers(Answer{Explanation: "frozen"}, nil), func(handle func(n int)) {
			for n := range 50 {
				handle(n)
			}
		}},
		"at once": {func(context.Context, Question) (Answer, error) {
			time.Sleep(300 * time.Millisecond) //nolint:forbidigo // in a bubble with a fake clock
			return Answer{Explanation: "frozen"}, nil
		}, func(handle func(n int)) {
			var group sync.WaitGroup
			for n := range 8 {
				group.Go(func() { handle(n) })
			}
			group.Wait()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeChecker{answer: test.answer}
				o := f.options()
				o.Stored = func(context.Context, workload.Kind, string, string, types.UID) (bool, error) { return true, nil }
				h := mutatingOf(o, deployments)
				test.try(func(n int) {
					if answer := h.Handle(t.Context(), forged("cart", "uid", n)); answer.Allowed {
						t.Errorf("try %d passed: %v", n, answer.Warnings)
					}
				})
				if asked := len(f.asked()); asked > defaultBudgets().stored.rates.Each.Burst {
					t.Errorf("the server was asked %d times", asked)
				}
				f.become(answers(Answer{Passes: true}, nil), nil)
				time.Sleep(time.Minute) //nolint:forbidigo // in a bubble with a fake clock
				if answer := h.Handle(t.Context(), forged("cart", "uid", 99)); !answer.Allowed {
					t.Errorf("denied although the server lets it pass: %v", answer.Result)
				}
			})
		})
	}
}

func TestBudgets(t *testing.T) { synctest.Test(t, testBudgets) }

func testBudgets(t *testing.T) {
	c := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	size := func(each, all int, eachAtOnce int64) budgetSize {
		return budgetSize{rates: network.RatesOptions{
			Each: network.Rate{PerSecond: 1, Burst: each}, All: network.Rate{PerSecond: 1, Burst: all}, Keys: 10, Keep: 2 * time.Hour,
		}, eachAtOnce: eachAtOnce, allAtOnce: 10}
	}
	b := newBudgets(budgetSizes{stored: size(2, 3, 2), others: size(3, 4, 1)}, c)
	stored := func(uid string) Question { return Question{Namespace: "ns", uid: types.UID(uid), stored: true} }
	unknown := func(namespace string) Question { return Question{Namespace: namespace} }
	spend := func(q Question, want string) func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		answered, err := b.spend(ctx, q)
		switch {
		case want == "" && err != nil:
			t.Errorf("refused: %v", err)
		case want != "" && (!errors.Is(err, errTooManyQuestions) || !strings.HasSuffix(err.Error(), want)):
			t.Errorf("%v, want %q", err, want)
		}
		return answered
	}
	const mine, all, others, atOnce = "about this workload", "too many questions", "about new workloads of this namespace", "at once"
	spend(stored("a"), "")()
	spend(stored("a"), "")()
	spend(stored("a"), mine)
	spend(stored("b"), "")()
	spend(stored("b"), all)
	// Workloads that are not stored have another budget.
	waiting := spend(unknown("ns"), "")
	spend(unknown("ns"), atOnce) // one question is in flight
	waiting()
	spend(unknown("ns"), "")()
	spend(unknown("ns"), others)
	spend(unknown("other"), "")()
	spend(unknown("other"), all)
	c.SetTime(c.Now().Add(time.Second))
	spend(stored("a"), "")()
	spend(stored("b"), all)
	c.SetTime(c.Now().Add(time.Hour))
	first, second := spend(stored("a"), ""), spend(stored("a"), "")
	c.SetTime(c.Now().Add(time.Minute))
	spend(stored("a"), atOnce) // both questions are in flight
	first()
	second()
	spend(stored("a"), "")()
}

func TestStoredBy(t *testing.T) {
	api := fake.NewClientBuilder().WithObjects(
		wrappers.MakeNamespace("shop").Enrolled().Obj(), wrappers.MakeNamespace("free").Obj(),
		wrappers.MakeDeployment("shop", "cart").UID("cart-uid").Obj(), wrappers.MakeDeployment("free", "web").UID("web-uid").Obj(),
	).Build()
	stored := StoredBy(cluster.View{Cached: api, Kinds: workload.NewRegistry(workload.Deployment{}), Operator: "operator"})
	for _, test := range []struct {
		namespace, name, uid string
		want                 bool
	}{
		{"shop", "cart", "cart-uid", true},
		{"shop", "cart", "another", false},
		{"shop", "cart", "", false},
		{"shop", "none", "cart-uid", false},
		{"free", "web", "web-uid", false},
		{"none", "web", "web-uid", false},
	} {
		got, err := stored(t.Context(), workload.Deployment{}, test.namespace, test.name, types.UID(test.uid))
		if err != nil || got != test.want {
			t.Errorf("%s/%s %s: %v, %v, want %v", test.namespace, test.name, test.uid, got, err, test.want)
		}
	}
}

// TestAnswerIsForItsQuestion: a release does not pass by the answer to a forged request about
// the same release.
func TestAnswerIsForItsQuestion(t *testing.T) {
	f := &fakeChecker{answer: func(_ context.Context, q Question) (Answer, error) {
		return Answer{Passes: q.App == "forged"}, nil
	}}
	o := f.options()
	o.Log = logr.Discard()
	h := mutatingOf(o, deployments)
	label := func(app string) admission.Request {
		object := func(test string) string {
			return manifest(`{"name":"sleep","namespace":"default","uid":"uid","labels":{"app":"`+app+`"}}`, `{"app":"sleep","test":"`+test+`"}`)
		}
		req := makeRequest(object("123"), object("1234"))
		req.UID = types.UID(app)
		return req
	}
	if !h.Handle(t.Context(), label("forged")).Allowed {
		t.Fatal("the forged request is denied")
	}
	if h.Handle(t.Context(), label("sleep")).Allowed {
		t.Error("the release passes by the answer to a forged request")
	}
}
