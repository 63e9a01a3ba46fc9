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
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	decide "github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/network"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// settingsTimeout is the time for reading the settings, which waits while the cache
	// starts.
	settingsTimeout = 500 * time.Millisecond
	// remembered is the time for which an answer is kept for repeated calls about the
	// same release: within one request the API server calls again after other
	// webhooks, and after each conflict with another writer.
	remembered = 15 * time.Second
	// maxRemembered is the number of releases whose answers are kept.
	maxRemembered = 1024
	// deniedFor is the time for which the last denial of a workload is repeated while the
	// budget for new questions is spent; maxDenied is the number of these workloads.
	deniedFor = 5 * time.Minute
	maxDenied = 4096
)

// mustAsk reports whether the admission check applies to a request: it releases a defended
// workload, is not the operator's own, and is no dry run. Namespaces that are not enrolled do
// not call the webhook.
//
// The check does not apply to a release that needs an override. Without a valid override the
// release is denied anyway. With one, a user decided that the release must pass, perhaps to
// end an outage that the server is part of. For the same reason it does not apply to an undo.
func mustAsk(req *admission.Request, r *decide.Request) bool {
	dryRun := req.DryRun != nil && *req.DryRun
	return r.Releases() && !r.Own && !workload.OptedOut(r.New.Labels) && !r.NeedsOverride() && !r.GoesBack() && !dryRun
}

// question returns the question about a request; stored is nil when the workload is being
// created.
func question(req *admission.Request, r *decide.Request, stored, changed *object) Question {
	name := cmp.Or(r.Name, changed.generateName)
	q := Question{
		RequestUID: req.UID,
		Kind:       r.Kind, Namespace: r.Namespace, Name: name,
		App:     (&workload.Workload{Name: name, Labels: r.New.Labels}).AppName(),
		User:    r.User,
		Release: r.Old.Annotations[v1alpha1.ReleaseAnnotation],
		Version: r.New.Version, OldVersion: r.Old.Version,
		Images: changed.images, Annotations: r.New.Annotations,
	}
	q.of = changed.kind
	if stored != nil {
		q.OldImages, q.uid = stored.images, stored.uid
	}
	return q
}

// gate is the admission check.
type gate struct {
	checker  Checker
	settings func(ctx context.Context, namespace string, annotations map[string]string) (settings.InForce, error)
	stored   func(ctx context.Context, kind workload.Kind, namespace, name string, uid types.UID) (bool, error)
	log      logr.Logger
	memory   *memory
	budgets  *budgets
	// denied has the last answer about a workload if it was a denial.
	denied *cache.LRUExpireCache // string -> Answer
	// noise limits log lines that forged requests can cause at will.
	noise *network.Log
}

// newGate returns nil without a Checker.
func newGate(o Options) *gate {
	if o.Checker == nil {
		return nil
	}
	by := o.Clock
	if by == nil {
		by = clock.RealClock{}
	}
	return &gate{
		checker: o.Checker, settings: o.Settings, stored: o.Stored, log: o.Log, memory: newMemory(clock.RealClock{}),
		budgets: newBudgets(defaultBudgets(), by), denied: cache.NewLRUExpireCacheWithClock(maxDenied, by),
		noise: network.NewLog(o.Log, clock.RealClock{}),
	}
}

// pass asks about a release if the setting admission is on; of is the workload after the
// release. It returns a denial or a warning. A failing answer denies. A missing answer denies
// if the setting silence is on.
func (g *gate) pass(ctx context.Context, q Question, of *decide.Object) (denial, warning string) {
	ctx, cancel := context.WithTimeout(ctx, settings.MaxAdmissionTimeout)
	defer cancel()
	log := g.log.WithValues("namespace", q.Namespace, "name", q.Name, "version", q.Version)

	s, err := g.inForce(ctx, q.Namespace, of.Annotations)
	s.ObserveOwned(of.ObservingOwner())
	if err != nil {
		log.Error(err, "admitted a release without the check of AlterShield Server, because it is not known whether the check is on")
		return "", ""
	}
	if !s.AdmissionCheck {
		return "", ""
	}
	q.stored = g.isStored(ctx, q)
	denial, warning = g.ask(logr.NewContext(ctx, log), s.Settings, q)
	if denial != "" && s.Observe {
		metrics.DryRun(workload.LabelOf(q.of.GroupVersionKind().GroupKind()), v1alpha1.DryRunDeny)
		return "", decide.WouldDeny(s.ObservedBy, denial)
	}
	return denial, warning
}

// ask asks about a release.
func (g *gate) ask(ctx context.Context, s settings.Settings, q Question) (denial, warning string) {
	checkCtx, cancel := context.WithTimeout(ctx, s.AdmissionTimeout)
	defer cancel()
	answer, repeated, err := g.memory.ask(checkCtx, q, g.check)
	prefix := fmt.Sprintf("%s %s: version %s may not be released: ", q.Kind, q.Name, q.Version)
	switch {
	case err == nil && answer.Passes:
		return "", ""
	case err == nil:
		g.memory.deny(q)
		return prefix + answer.Explanation, ""
	}
	limited := errors.Is(err, errTooManyQuestions)
	if limited {
		g.noise.Info("AlterShield Server was not asked about a release: too many questions",
			"kind", q.Kind, "namespace", q.Namespace, "name", q.Name, "limit", err.Error())
	}
	if !repeated && !limited && !errors.Is(ctx.Err(), context.Canceled) {
		logr.FromContextOrDiscard(ctx).Info("AlterShield Server did not say whether a version may be released",
			"denied", s.SilenceFails, "limit", s.AdmissionTimeout.String(), "cause", err.Error())
	}
	problem := describe(err, s.AdmissionTimeout)
	if s.SilenceFails {
		g.memory.deny(q)
		return prefix + problem + `, and the OpsConfigInfo "silence" makes that a failure; try again once the server answers, ` +
			`or turn off the OpsConfigInfo "admission" or "silence"`, ""
	}
	return "", problem + "; released without its check"
}

// check asks the server if the budget allows it. Otherwise the last denial of the workload is
// repeated, so that a release does not pass because it was tried often.
func (g *gate) check(ctx context.Context, q Question) (Answer, error) {
	about := strings.Join([]string{q.Kind, q.Namespace, q.Name, string(q.uid)}, "\x00")
	answered, err := g.budgets.spend(ctx, q)
	if err != nil {
		if last, ok := g.denied.Get(about); ok && errors.Is(err, errTooManyQuestions) {
			answer := last.(Answer) //nolint:errcheck // the cache holds nothing else
			answer.Explanation += " (the last answer about this workload; " + describe(err, 0) + ")"
			return answer, nil
		}
		return Answer{}, err
	}
	defer answered()
	answer, err := g.checker.Check(ctx, q)
	switch {
	case err == nil && answer.Passes:
		g.denied.Remove(about)
	case err == nil:
		g.denied.Add(about, answer, deniedFor)
	}
	return answer, err
}

// isStored reports whether the workload of a question is known to be stored.
func (g *gate) isStored(ctx context.Context, q Question) bool {
	if g.stored == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
	defer cancel()
	stored, err := g.stored(ctx, q.of, q.Namespace, q.Name, q.uid)
	if err != nil {
		g.noise.Error(err, "it is not known whether a workload is stored", "kind", q.Kind, "namespace", q.Namespace, "name", q.Name)
	}
	return stored
}

func (g *gate) inForce(ctx context.Context, namespace string, annotations map[string]string) (settings.InForce, error) {
	ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
	defer cancel()
	return g.settings(ctx, namespace, annotations)
}

// describe returns a message for users about a missing answer. Only the log shows addresses.
func describe(err error, limit time.Duration) string {
	var refusal *altershield.Error
	switch {
	case errors.Is(err, errTooManyQuestions):
		return "AlterShield Server is not asked: " + err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("AlterShield Server gave no answer in %s", limit)
	case errors.As(err, &refusal) && refusal.Code != "":
		return fmt.Sprintf("AlterShield Server refused the check (result code %s)", refusal.Code)
	default:
		return "AlterShield Server cannot be asked"
	}
}

// memory keeps answers for a short time, so that repeated calls about one release ask once. The
// API server gives each call another UID, even within one request, so keyOf identifies a
// release by its content. The same UID comes again only after a connection broke.
type memory struct {
	mu sync.Mutex
	// entries are *entry by key.
	entries *cache.LRUExpireCache
}

// entry is a question that was asked. Its answer may be read after done is closed.
type entry struct {
	// call is the UID of the call that asked.
	call types.UID
	// denied: the release was denied, so another call asks again. It is guarded by memory.mu.
	denied bool
	done   chan struct{}
	answer Answer
	err    error
}

func newMemory(c clock.PassiveClock) *memory {
	return &memory{entries: cache.NewLRUExpireCacheWithClock(maxRemembered, c)}
}

// keyOf returns a key with all that the server reads, so that a release does not get the
// answer to a forged one.
func keyOf(q Question) string {
	return strings.Join(append([]string{
		q.Kind, q.Namespace, q.Name, string(q.uid), q.App, q.Release, q.OldVersion, q.Version, q.User,
	}, q.OldImages...), "\x00")
}

// ask asks a question. If it was asked before, ask waits for that answer and returns it.
func (m *memory) ask(
	ctx context.Context, q Question, check func(context.Context, Question) (Answer, error),
) (answer Answer, repeated bool, err error) {
	e, repeated := m.enter(q)
	if repeated {
		select {
		case <-e.done:
			return e.answer, true, e.err
		case <-ctx.Done():
			return Answer{}, true, ctx.Err()
		}
	}
	e.err = errors.New("the check was interrupted")
	keep := false
	defer func() {
		if !keep {
			m.entries.Remove(keyOf(q))
		}
		close(e.done)
	}()
	e.answer, e.err = check(ctx, q)
	// If the caller canceled the call, its error says nothing about the server.
	keep = !errors.Is(ctx.Err(), context.Canceled)
	return e.answer, false, e.err
}

// enter returns the entry of a question, and whether it existed before.
func (m *memory) enter(q Question) (*entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.find(q); e != nil && (!e.denied || e.call == q.RequestUID) {
		return e, true
	}
	e := &entry{call: q.RequestUID, done: make(chan struct{})}
	m.entries.Add(keyOf(q), e, remembered)
	return e, false
}

// find returns the entry of a question, or nil. The caller holds the lock.
func (m *memory) find(q Question) *entry {
	value, _ := m.entries.Get(keyOf(q))
	e, _ := value.(*entry)
	return e
}

// deny makes the next try of a denied release ask again: its user expects a new answer. A
// repetition of the same call gets the same answer.
func (m *memory) deny(q Question) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.find(q); e != nil {
		e.denied = true
	}
}
