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

package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// rollbackFlags are the flags of rollback.
type rollbackFlags struct {
	to, operator string
	wait         bool
	timeout      time.Duration
}

// eventTime is how long to wait for the event that says why a request was refused.
const eventTime = 10 * time.Second

func rollbackCommand(c *connection) *cobra.Command {
	f, change := rollbackFlags{}, &changer{connection: c}
	cmd := &cobra.Command{
		Use:   "rollback " + usageOfTarget,
		Short: "Ask for a rollback to a version that succeeded",
		Long: strings.TrimSpace(`
Ask the operator to set a workload back to a version of its history: to the newest version
that succeeded and is not in quarantine, or to the version of --to. The current version goes
into quarantine, and the operator's halt ends. The restored version is verified as a release
of its own. When it runs, the operator's block ends.

The command prints the version to restore, refuses what the operator would refuse, and
waits until the operator carried the request out or refused it.`),
		Example: `  # To the newest version that succeeded
  kubectl altershield rollback deployment/sleep

  # To a version of the history, by its beginning
  kubectl altershield rollback deployment/sleep --to c6c45d23

  # Only print the version to restore
  kubectl altershield rollback deployment/sleep --dry-run`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.completeWorkloads,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := change.check(); err != nil {
				return err
			}
			return change.rollback(cmd.Context(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.to, "to", rollback.LastSuccess,
		"the version to restore, or its beginning; or last-success, the newest version that succeeded")
	flags.BoolVar(&f.wait, "wait", true, "wait until the operator did it, or refused")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait for the operator; 0 waits forever")
	addOperatorNamespace(flags, &f.operator)
	completeFlag(cmd, "to", c.completeHistory)
	change.addTo(flags)
	return cmd
}

func (c *changer) rollback(ctx context.Context, f rollbackFlags, args []string) error {
	api, s, err := c.reachDefended(ctx, args)
	if err != nil {
		return err
	}
	t := s.target
	to, err := c.rollbackTarget(ctx, api, s, f)
	if err != nil {
		return err
	}
	if asked, ok := s.workload.Annotations[v1alpha1.RollbackToAnnotation]; ok {
		printf(c.Out, "%s: a rollback to %q is requested already, and not carried out yet\n", t, asked)
	}
	what := fmt.Sprintf("%s: set back %s to %s, %s", t, describeVersion(s.workload.Version, s.workload.Images),
		describeVersion(to.Version, to.images), sinceRelease(to.Release))
	// The version, not last-success: the user has read the version.
	err = c.change(what, t.String()+" annotated", func(dryRun []string) error {
		ops := append([]workload.Op{sameObject(s.stored)}, sameRelease(s)...)
		_, err := patchOps(ctx, api, s.stored, append(ops, annotationOps(s.stored, v1alpha1.RollbackToAnnotation, &to.Version)...), dryRun)
		return err
	})
	if err != nil || c.pretends() {
		return err
	}
	if !f.wait {
		c.next(c.command(t, "status"))
		return nil
	}
	return c.awaitRollback(ctx, api, s, to, f.timeout)
}

// sinceRelease returns which release put a version into the history.
func sinceRelease(release int64) string {
	if release == rollback.BaselineRelease {
		return "which was there before the first recorded release"
	}
	return fmt.Sprintf("which succeeded as release %d", release)
}

// rollbackTarget returns the version to restore, or why the operator would refuse, as far as the user may read the reasons.
func (c *changer) rollbackTarget(ctx context.Context, api client.Client, s *snapshot, f rollbackFlags) (remembered, error) {
	history, err := readHistory(ctx, api, s.target, s.workload.UID)
	if err != nil {
		return remembered{}, err
	}
	changes, err := releasesOf(ctx, api, s.target, s.workload.UID)
	if err != nil {
		return remembered{}, err
	}
	inForce, _, err := c.inForceFor(ctx, api, f.operator, s.workload)
	if err != nil {
		return remembered{}, err
	}
	in := rollback.Input{
		Now: s.now, Settings: inForce.Settings, Workload: s.workload, Enrolled: true, Changes: changes, History: revisions(history),
	}
	return c.chooseTarget(in, history, f.to, s.target)
}

// chooseTarget returns the version to restore, or why a request is refused.
func (c *connection) chooseTarget(in rollback.Input, history []remembered, to string, t target) (remembered, error) {
	if to != rollback.LastSuccess {
		known := []string{in.Workload.Version}
		for i := range history {
			known = append(known, history[i].Version)
		}
		version, err := fullVersion(to, known)
		if err != nil {
			return remembered{}, remedy(fmt.Errorf("the history of %s has %w", t, err), historyHas(history, in.Workload, in.Now))
		}
		to = version
	}
	version, refusal := rollback.Request(in, to)
	if refusal != "" {
		do := historyHas(history, in.Workload, in.Now)
		if in.Workload.ObservingOwner() != "" || in.Settings.Observe {
			do = "put it into enforce mode first: " + c.command(t, "enroll", "--mode="+modeEnforce)
		}
		return remembered{}, remedy(fmt.Errorf("the operator would refuse: %s", refusal), do)
	}
	i := slices.IndexFunc(history, func(r remembered) bool { return r.Version == version })
	return history[i], nil
}

// historyHas lists the versions of the history.
func historyHas(history []remembered, w *workload.Workload, now time.Time) string {
	if len(history) == 0 {
		return "its history is empty: no recorded version has succeeded; release a fix"
	}
	lines, quarantine := make([]string, len(history)), rollback.ParseQuarantine(w.Annotations, now)
	for i := range history {
		lines[i] = fmt.Sprintf("%s, %s", describeVersion(history[i].Version, history[i].images), sinceRelease(history[i].Release))
		switch version := history[i].Version; {
		case version == w.Version:
			lines[i] += " (the current one)"
		case quarantine.Holds(version):
			lines[i] += " (in quarantine)"
		}
	}
	return "the history has: " + strings.Join(lines, "; ")
}

// awaitRollback waits until the operator carried the request out, or refused it.
func (c *changer) awaitRollback(ctx context.Context, api client.WithWatch, s *snapshot, to remembered, timeout time.Duration) error {
	asked := c.Now()
	var now *snapshot
	watch := &watcher{api: api, timeout: timeout, trouble: c.printTrouble, what: []watched{watchedTarget(s.target)}}
	err := watch.until(ctx, func(ctx context.Context) (bool, error) {
		var err error
		if now, err = c.read(ctx, api, s.target); err != nil {
			return false, err
		}
		_, waits := now.workload.Annotations[v1alpha1.RollbackToAnnotation]
		return !waits || now.workload.UID != s.workload.UID, nil
	})
	switch {
	case errors.Is(err, errTimedOut):
		return remedy(fmt.Errorf("the operator has not taken the request in %s; the request stays", timeout),
			"see whether the operator runs: "+c.commandIn("", "check"))
	case err != nil:
		return err
	}
	return c.reportRollback(ctx, api, s, now, to, asked)
}

// reportRollback prints the result of a request that the operator has taken.
func (c *changer) reportRollback(ctx context.Context, api client.WithWatch, s, now *snapshot, to remembered, asked time.Time) error {
	switch outcome := rollbackOutcome(s.workload, now.workload, to.Version); outcome {
	case rollbackDone:
		printf(c.Out, "%s: rolled back; version %s is verified now as release %d, and version %s is in quarantine\n",
			s.target, to.Version, now.workload.Release(), s.workload.Version)
		c.next(c.command(s.target, "wait"))
		return nil
	case rollbackOvertaken:
		return remedy(fmt.Errorf("the request was dropped: %s was released at the same time, by %s", s.target, now.workload.ReleasedBy()),
			"see the new release: "+c.command(s.target, "status"))
	default:
		why, err := c.refusal(ctx, api, now, asked)
		if err != nil {
			return err
		}
		return remedy(fmt.Errorf("the operator refused: %s", why), "see "+c.command(s.target, "status"))
	}
}

// Results of a rollback request that the operator has removed.
const (
	rollbackDone      = "done"
	rollbackOvertaken = "overtaken"
	rollbackRefused   = "refused"
)

// rollbackOutcome returns the result of a request, according to the workload.
func rollbackOutcome(before, after *workload.Workload, to string) string {
	reason, ok := rollback.ParseQuarantine(after.Annotations, time.Time{}).Reason(before.Version)
	switch {
	case ok && reason.Release == before.Release() && reason.To == to:
		return rollbackDone
	case after.UID != before.UID || after.Release() != before.Release() || after.Version != before.Version:
		return rollbackOvertaken
	default:
		return rollbackRefused
	}
}

// refusal returns why a request was refused, according to its event.
func (c *connection) refusal(ctx context.Context, api client.WithWatch, s *snapshot, asked time.Time) (string, error) {
	why := "it gave no reason that you may read"
	opts := []client.ListOption{client.InNamespace(s.key.Namespace), client.MatchingFields{
		"involvedObject.uid": string(s.workload.UID), "reason": v1alpha1.ReasonRollbackRefused,
	}}
	watch := &watcher{api: api, timeout: eventTime, what: []watched{{&corev1.EventList{}, opts}}}
	err := watch.until(ctx, func(ctx context.Context) (bool, error) {
		var events corev1.EventList
		if err := api.List(ctx, &events, opts...); err != nil {
			return false, err
		}
		// Clocks differ by a little.
		found := newestSince(events.Items, asked.Add(-time.Minute))
		if found == "" {
			return false, nil
		}
		why = found
		return true, nil
	})
	if errors.Is(err, errTimedOut) || apierrors.IsForbidden(err) {
		return why, nil
	}
	return why, err
}

// newestSince returns the message of the newest event since a time; empty for none.
func newestSince(events []corev1.Event, since time.Time) string {
	var newest *corev1.Event
	for i := range events {
		if e := &events[i]; !eventAt(e).Before(since) && (newest == nil || eventAt(newest).Before(eventAt(e))) {
			newest = e
		}
	}
	if newest == nil {
		return ""
	}
	return newest.Message
}

// eventAt returns the time at which an event last occurred.
func eventAt(e *corev1.Event) time.Time {
	at := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if t.After(at) {
			at = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}
