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
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	decide "github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// fakeChecker is a Checker, and has settings with the check on. It keeps the questions.
type fakeChecker struct {
	mu        sync.Mutex
	answer    func(context.Context, Question) (Answer, error)
	settings  func(*settings.Settings) error
	questions []Question
	// reads is the number of reads of the settings.
	reads int
}

func (f *fakeChecker) Check(ctx context.Context, q Question) (Answer, error) {
	f.mu.Lock()
	f.questions = append(f.questions, q)
	answer := f.answer
	f.mu.Unlock()
	if answer == nil {
		return Answer{Passes: true}, nil
	}
	return answer(ctx, q)
}

func (f *fakeChecker) Settings(context.Context, string, map[string]string) (settings.InForce, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	s := settings.InForce{Settings: settings.Default()}
	s.AdmissionCheck = true
	if f.settings == nil {
		return s, nil
	}
	err := f.settings(&s.Settings)
	return s, err
}

// become changes the answer and the settings, and forgets the questions.
func (f *fakeChecker) become(answer func(context.Context, Question) (Answer, error), change func(*settings.Settings) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer, f.settings, f.questions, f.reads = answer, change, nil, 0
}

// called returns the number of calls of the webhook that read the settings.
func (f *fakeChecker) called() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

func (f *fakeChecker) asked() []Question {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.questions)
}

func (f *fakeChecker) options() Options {
	return Options{Self: self, Checker: f, Settings: f.Settings, Log: logr.Discard()}
}

// mutatingOf returns a mutating webhook with an admission check of its own.
func mutatingOf(o Options, kind workload.Kind) handler { return newMutating(o, kind, newGate(o)) }

// answers returns a check with a constant answer.
func answers(a Answer, err error) func(context.Context, Question) (Answer, error) {
	return func(context.Context, Question) (Answer, error) { return a, err }
}

// patience waits until the context ends, as for a server that does not answer.
func patience(ctx context.Context, _ Question) (Answer, error) {
	<-ctx.Done()
	return Answer{}, &altershield.Error{Class: altershield.ClassRetry, Err: ctx.Err()}
}

// released2 returns released with another version in its template.
func released2(more string) string {
	return strings.Replace(released(more), `"123"`, `"1234"`, 1)
}

func asOwn(req *admission.Request) {
	req.UserInfo.Username = self
	req.Options.Raw = []byte(`{"fieldManager":"altershield-operator"}`)
}

// TestGateAsks checks which requests the server is asked about, and that the check does not
// change the mutation.
func TestGateAsks(t *testing.T) {
	suspended := labelled(v1alpha1.SuspendLabel, "1")
	override := labelled(v1alpha1.IgnoredSuspendLabel, "true")
	stale := func(manifest string) string {
		return strings.Replace(manifest, `"annotations":{`, `"annotations":{`+labelled(v1alpha1.OverrideStaleAnnotation, "true"), 1)
	}
	tests := map[string]struct {
		before, after string
		edit          func(*admission.Request)
		want          bool
	}{
		"created":              {after: manifest(`{"name":"sleep"}`, sleepLabels), want: true},
		"created from a clone": {after: released(suspended + override), want: true},
		"created opted out":    {after: manifest(`{"name":"sleep","labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}`, sleepLabels)},
		"created by us":        {after: manifest(`{"name":"sleep"}`, sleepLabels), edit: asOwn},
		"released":             {before: released(""), after: released2(""), want: true},
		"baseline released": {
			before: manifest(`{"name":"sleep"}`, sleepLabels), after: manifest(`{"name":"sleep"}`, repairLabels), want: true,
		},
		"back to the version in the label": {
			before: strings.Replace(released(""), `"test":"123"`, `"test":"1234"`, 1), after: released(""), want: true,
		},
		"scaled":                {before: released(""), after: strings.Replace(released(""), `"replicas":5`, `"replicas":6`, 1)},
		"version label changed": {before: released(""), after: strings.ReplaceAll(released(""), sleepVersion, "x")},
		"rolled back by us":     {before: released(""), after: released2(""), edit: asOwn},
		"released by a person with our user": {
			before: released(""), after: released2(""), want: true,
			edit: func(req *admission.Request) { req.UserInfo.Username = self },
		},
		"opted out":      {before: released(""), after: released2(labelled(v1alpha1.DefenseLabel, "disabled"))},
		"opted in again": {before: released(labelled(v1alpha1.DefenseLabel, "disabled")), after: released2(""), want: true},
		"deleting": {
			before: released(""), after: manifest(`{"name":"sleep","deletionTimestamp":"2024-01-01T00:00:00Z"}`, repairLabels),
		},
		"blocked":             {before: released(suspended), after: released2(suspended)},
		"blocked, block lost": {before: released(suspended), after: released2("")},
		"blocked, overridden": {before: released(suspended), after: released2(suspended + override)},
		"blocked, stale override": {
			before: stale(released(suspended + override)), after: stale(released2(suspended + override)),
		},
		"override without a block": {
			before: released(""), after: released2(override), want: true,
		},
		"blocked in the same request": {before: released(""), after: released2(suspended), want: true},
		"dry run": {
			before: released(""), after: released2(""),
			edit: func(req *admission.Request) { req.DryRun = ptr.To(true) },
		},
		"no dry run": {
			before: released(""), after: released2(""), want: true,
			edit: func(req *admission.Request) { req.DryRun = ptr.To(false) },
		},
		"subresource": {before: released(""), after: released2(""), edit: func(req *admission.Request) { req.SubResource = "status" }},
		"deletion":    {before: released(""), after: "null", edit: func(req *admission.Request) { req.Operation = admissionv1.Delete }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			req := makeRequest(tt.before, tt.after)
			if tt.edit != nil {
				tt.edit(&req)
			}
			f := &fakeChecker{}
			response := review(t, mutatingOf(f.options(), deployments), req)
			if asked := len(f.asked()); (asked == 1) != tt.want || asked > 1 {
				t.Errorf("asked %d times, want it asked: %t", asked, tt.want)
			}
			if !tt.want && f.called() > 0 {
				t.Error("the settings were read without need")
			}
			if diff := cmp.Diff(review(t, mutatingOf(Options{Self: self}, deployments), req), response); diff != "" {
				t.Error("differs from the answer without a check:\n", diff)
			}
			if !tt.want {
				return
			}
			// Package admission counts exactly these requests as releases.
			request, _, _, err := read(&req, &Options{Self: self}, deployments)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(decide.Mutate(request), func(c decide.Change) bool {
				return c.Target == decide.WorkloadAnnotation && c.Key == v1alpha1.ReleaseAnnotation
			}) && tt.before != "" {
				t.Error("asked about a release that package admission does not count")
			}
		})
	}
}

func TestQuestions(t *testing.T) {
	withInit := strings.NewReplacer(
		`"containers":[`, `"initContainers":[{"name":"i","image":"busybox"},{"name":"j","image":"init:1"},null,{"image":7}],"containers":[`,
		`"image":"busybox","command"`, `"image":"busybox:2","command"`)
	tests := map[string]struct {
		req  func() admission.Request
		want Question
	}{
		"created": {
			req: func() admission.Request { return makeRequest("", manifest(`{"name":"sleep"}`, sleepLabels)) },
			want: Question{
				RequestUID: "1", Kind: "deployment", Namespace: "default", Name: "sleep", App: "sleep", User: "jane",
				Version: sleepVersion, Images: []string{"busybox"},
			},
		},
		"created with a generated name": {
			req: func() admission.Request {
				req := makeRequest("", manifest(`{"generateName":"sleep-","labels":{"app":"nap"}}`, sleepLabels))
				req.Name = ""
				return req
			},
			want: Question{
				RequestUID: "1", Kind: "deployment", Namespace: "default", Name: "sleep-", App: "nap", User: "jane",
				Version: sleepVersion, Images: []string{"busybox"},
			},
		},
		"released": {
			req: func() admission.Request {
				return makeRequest(released(""), withInit.Replace(released(labelled("app.kubernetes.io/name", "doze"))))
			},
			want: Question{
				RequestUID: "1", Kind: "deployment", Namespace: "default", Name: "sleep", App: "doze", User: "jane", Release: "1",
				OldVersion: sleepVersion, Images: []string{"busybox", "init:1", "busybox:2"}, OldImages: []string{"busybox"},
				Annotations: map[string]string{v1alpha1.ReleaseAnnotation: "1"},
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fakeChecker{}
			req := tt.req()
			review(t, mutatingOf(f.options(), deployments), req)
			o, err := parse(req.Object.Raw, deployments)
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Version = o.Version
			if diff := cmp.Diff([]Question{tt.want}, f.asked(), cmpopts.IgnoreUnexported(Question{})); diff != "" {
				t.Error("(-want +got):\n", diff)
			}
		})
	}
}

// TestGateDecides checks the denial or the warning after each answer.
func TestGateDecides(t *testing.T) {
	const prefix = "deployment sleep: version " + repairVersion + " may not be released: "
	const remedy = `, and the OpsConfigInfo "silence" makes that a failure; try again once the server answers, ` +
		`or turn off the OpsConfigInfo "admission" or "silence"`
	silence := func(s *settings.Settings) error { s.SilenceFails = true; return nil }
	refused := &altershield.Error{Class: altershield.ClassGiveUp, Code: altershield.CodeDuplicate, Msg: "exists"}
	unreachable := &altershield.Error{Class: altershield.ClassRetry, Err: errors.New("dial tcp 10.0.0.1:80: connection refused")}
	tests := map[string]struct {
		answer   func(context.Context, Question) (Answer, error)
		settings func(*settings.Settings) error
		// wantDenied is the message of a denial; empty if the request passes.
		wantDenied  string
		wantWarning string
		wantLogged  int
		wantUnasked bool
	}{
		"passes":              {answer: answers(Answer{Passes: true}, nil)},
		"passes with silence": {answer: answers(Answer{Passes: true}, nil), settings: silence},
		"fails":               {answer: answers(Answer{Explanation: "frozen; http://x"}, nil), wantDenied: prefix + "frozen; http://x"},
		"turned off": {
			answer:   answers(Answer{Explanation: "frozen"}, nil),
			settings: func(s *settings.Settings) error { s.AdmissionCheck, s.SilenceFails = false, true; return nil }, wantUnasked: true,
		},
		"settings cannot be read": {
			settings:    func(s *settings.Settings) error { s.SilenceFails = true; return errors.New("no cache") },
			wantUnasked: true, wantLogged: 1,
		},
		"refused": {
			answer:      answers(Answer{}, refused),
			wantWarning: "AlterShield Server refused the check (result code 106); released without its check", wantLogged: 1,
		},
		"refused, silence fails": {
			answer: answers(Answer{}, refused), settings: silence,
			wantDenied: prefix + "AlterShield Server refused the check (result code 106)" + remedy, wantLogged: 1,
		},
		"unreachable": {
			answer:      answers(Answer{}, unreachable),
			wantWarning: "AlterShield Server cannot be asked; released without its check", wantLogged: 1,
		},
		"breaker open": {
			answer:      answers(Answer{}, &altershield.Error{Err: altershield.ErrBreakerOpen}),
			wantWarning: "AlterShield Server cannot be asked; released without its check", wantLogged: 1,
		},
		"silent": {
			answer:      patience,
			wantWarning: "AlterShield Server gave no answer in 2s; released without its check", wantLogged: 1,
		},
		"silent, silence fails": {
			answer: patience, settings: silence,
			wantDenied: prefix + "AlterShield Server gave no answer in 2s" + remedy, wantLogged: 1,
		},
		"panics": {
			answer:   func(context.Context, Question) (Answer, error) { panic("broken") },
			settings: silence, wantLogged: 1,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeChecker{answer: tt.answer, settings: tt.settings}
				o := f.options()
				logged := 0
				o.Log = funcr.New(func(_, args string) {
					logged++
					if !strings.Contains(args, `"name"="sleep"`) {
						t.Errorf("log line %s does not name the object", args)
					}
				}, funcr.Options{})
				begun := time.Now()
				response := review(t, mutatingOf(o, deployments), makeRequest(released(""), released2("")))
				if took := time.Since(begun); took > 2*time.Second {
					t.Errorf("took %s, the limit is 2s", took)
				}
				if logged != tt.wantLogged {
					t.Errorf("logged %d lines, want %d", logged, tt.wantLogged)
				}
				if unasked := len(f.asked()) == 0; unasked != tt.wantUnasked {
					t.Errorf("unasked = %t, want %t", unasked, tt.wantUnasked)
				}
				if tt.wantDenied != "" {
					if response.Allowed || response.Patch != nil {
						t.Fatalf("allowed = %t, patch %s, want it denied", response.Allowed, response.Patch)
					}
					if response.Result.Message != tt.wantDenied || response.Result.Code != http.StatusForbidden {
						t.Errorf("denied with %d %q, want %q", response.Result.Code, response.Result.Message, tt.wantDenied)
					}
					return
				}
				if !response.Allowed {
					t.Fatal("denied:", response.Result.Message)
				}
				if response.Patch == nil && name != "panics" {
					t.Error("the mutation is lost")
				}
				if got := strings.Join(response.Warnings, "\n"); got != tt.wantWarning {
					t.Errorf("warnings %q, want %q", got, tt.wantWarning)
				}
			})
		})
	}
}

// TestGateLimits: the time of the webhook limits the reading of the settings and the check
// together.
func TestGateLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeChecker{answer: patience, settings: func(s *settings.Settings) error {
			s.AdmissionTimeout = settings.MaxAdmissionTimeout
			return nil
		}}
		o := f.options()
		o.Settings = func(ctx context.Context, namespace string, annotations map[string]string) (settings.InForce, error) {
			time.Sleep(400 * time.Millisecond) //nolint:forbidigo // in a bubble with a fake clock
			return f.Settings(ctx, namespace, annotations)
		}
		begun := time.Now()
		review(t, mutatingOf(o, deployments), makeRequest(released(""), released2("")))
		if took := time.Since(begun); took != settings.MaxAdmissionTimeout {
			t.Errorf("took %s, want %s", took, settings.MaxAdmissionTimeout)
		}

		o.Settings = func(ctx context.Context, namespace string, annotations map[string]string) (settings.InForce, error) {
			<-ctx.Done()
			return settings.InForce{}, ctx.Err()
		}
		begun = time.Now()
		response := review(t, mutatingOf(o, deployments), makeRequest(released(""), released2("")))
		if !response.Allowed || response.Patch == nil {
			t.Errorf("without settings: %+v, want it mutated", response)
		}
		if took := time.Since(begun); took != settingsTimeout {
			t.Errorf("without settings it took %s, want %s", took, settingsTimeout)
		}
	})
}

// TestGateRemembers checks which calls ask the server once.
func TestGateRemembers(t *testing.T) {
	pass, fail := answers(Answer{Passes: true}, nil), answers(Answer{Explanation: "frozen"}, nil)
	none := answers(Answer{}, &altershield.Error{Class: altershield.ClassRetry})
	again := func(edits ...func(*Question)) Question {
		q := Question{
			RequestUID: "1", Kind: "deployment", Namespace: "default", Name: "sleep", User: "jane",
			Release: "1", OldVersion: "a", Version: "b",
		}
		for _, edit := range edits {
			edit(&q)
		}
		return q
	}
	nextCall := func(q *Question) { q.RequestUID = "2" }
	tests := map[string]struct {
		answer    func(context.Context, Question) (Answer, error)
		silence   bool
		second    Question
		later     time.Duration
		wantAsked int
	}{
		"passed, the same call": {answer: pass, second: again(), wantAsked: 1},
		"passed, reinvoked":     {answer: pass, second: again(nextCall), wantAsked: 1},
		"passed, reinvoked on a template": {
			answer: pass, second: again(nextCall, func(q *Question) { q.Version = "c" }), wantAsked: 2,
		},
		"passed, another workload":   {answer: pass, second: again(nextCall, func(q *Question) { q.Name = "nap" }), wantAsked: 2},
		"passed, another namespace":  {answer: pass, second: again(nextCall, func(q *Question) { q.Namespace = "x" }), wantAsked: 2},
		"passed, another user":       {answer: pass, second: again(nextCall, func(q *Question) { q.User = "joe" }), wantAsked: 2},
		"passed, a release between":  {answer: pass, second: again(nextCall, func(q *Question) { q.Release = "3" }), wantAsked: 2},
		"passed, template slipped":   {answer: pass, second: again(nextCall, func(q *Question) { q.OldVersion = "x" }), wantAsked: 2},
		"passed, later":              {answer: pass, second: again(nextCall), later: remembered + time.Second, wantAsked: 2},
		"failed, the same call":      {answer: fail, second: again(), wantAsked: 1},
		"failed, tried again":        {answer: fail, second: again(nextCall), wantAsked: 2},
		"none, reinvoked":            {answer: none, second: again(nextCall), wantAsked: 1},
		"none denied, the same call": {answer: none, silence: true, second: again(), wantAsked: 1},
		"none denied, tried again":   {answer: none, silence: true, second: again(nextCall), wantAsked: 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fakeChecker{answer: tt.answer, settings: func(s *settings.Settings) error {
				s.SilenceFails = tt.silence
				return nil
			}}
			clock := clocktesting.NewFakePassiveClock(time.Now())
			g := newGate(f.options())
			g.memory = newMemory(clock)
			logged := 0
			g.log = funcr.New(func(string, string) { logged++ }, funcr.Options{})
			denial, warning := g.pass(t.Context(), again(), &decide.Object{})
			clock.SetTime(clock.Now().Add(tt.later))
			denialAgain, warningAgain := g.pass(t.Context(), tt.second, &decide.Object{})
			if asked := len(f.asked()); asked != tt.wantAsked {
				t.Errorf("asked %d times, want %d", asked, tt.wantAsked)
			}
			if tt.wantAsked == 1 && (denial != denialAgain || warning != warningAgain) {
				t.Errorf("answers %q %q, then %q %q", denial, warning, denialAgain, warningAgain)
			}
			wantLogged := 0
			if _, err := tt.answer(t.Context(), again()); err != nil {
				wantLogged = tt.wantAsked
			}
			if logged != wantLogged {
				t.Errorf("logged %d lines, want %d", logged, wantLogged)
			}
		})
	}
}

// TestGateConcurrently: concurrent calls about one release share one question, and all end
// if it panics.
func TestGateConcurrently(t *testing.T) {
	for name, answer := range map[string]func(context.Context, Question) (Answer, error){
		"answered": func(context.Context, Question) (Answer, error) {
			time.Sleep(time.Second) //nolint:forbidigo // in a bubble with a fake clock
			return Answer{Explanation: "frozen"}, nil
		},
		"broken": func(context.Context, Question) (Answer, error) {
			time.Sleep(time.Second) //nolint:forbidigo // in a bubble with a fake clock
			panic("broken")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeChecker{answer: answer}
				h := mutatingOf(f.options(), deployments)
				begun := time.Now()
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						req := makeRequest(released(""), released2(""))
						req.UID = types.UID(fmt.Sprintf("call-%d", i))
						response := h.Handle(t.Context(), req)
						if denied := !response.Allowed; denied != (name == "answered") {
							t.Errorf("call %d: denied = %t", i, denied)
						}
					})
				}
				wg.Wait()
				if asked := len(f.asked()); asked != 1 {
					t.Errorf("asked %d times, want once", asked)
				}
				if took := time.Since(begun); took != time.Second {
					t.Errorf("took %s, want 1s", took)
				}
				review(t, h, makeRequest(released(""), released2("")))
				if asked := len(f.asked()); asked != 2 {
					t.Errorf("a later try asked %d times in all, want 2", asked)
				}
			})
		})
	}
}

// TestGateCallerGone: the error of a canceled call is neither remembered nor logged.
func TestGateCallerGone(t *testing.T) {
	f := &fakeChecker{answer: patience}
	g := newGate(f.options())
	g.log = funcr.New(func(_, args string) { t.Error("logged", args) }, funcr.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q := Question{RequestUID: "1", Name: "sleep", Version: "b"}
	g.pass(ctx, q, &decide.Object{})
	f.answer = answers(Answer{Passes: true}, nil)
	if denial, warning := g.pass(t.Context(), q, &decide.Object{}); denial+warning != "" || len(f.asked()) != 1 {
		t.Errorf("denial %q, warning %q, asked %d times, want one question that passes", denial, warning, len(f.asked()))
	}
}
