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
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// slippedGrace is how long is waited for the record of a release that admission may
// not have seen.
const slippedGrace = 30 * time.Second

// codeInterrupted is the exit code of a wait that somebody interrupted.
const codeInterrupted = 130

// WaitResult is what `wait -o json` prints.
type WaitResult struct {
	// Kind, Namespace and Name of the workload.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Version and Release are those of the release that was waited for; Release is 0
	// where there is none.
	Version string `json:"version"`
	Release int64  `json:"release"`
	// Ending is Success, NoRelease, Suspend, NotProven, Rollback, Canceled, Failed, NotDefended or
	// Timeout.
	Ending string `json:"ending"`
	// Message explains it.
	Message string `json:"message"`
	// ExitCode is that of the command.
	ExitCode int `json:"exitCode"`
}

// waitFlags are the flags of wait.
type waitFlags struct {
	until, version, notDefended, output string
	release                             int64
	timeout                             time.Duration
}

const waitLong = `
Wait until the release of a workload ended, and tell by the exit code how. It is for
pipelines, in place of kubectl rollout status, right after an apply: it waits for the
release that the workload is at, and follows that one, whatever is released after it.
Where the operator has gone back by then it tells of the release that it went back from:
name the one that it restored by --release, or its version by --version.

Exit codes:
    0  the release succeeded; or there is none: the template has not changed since the
       workload was enrolled
    1  an error: no such workload, no right to read it, a wrong flag
    2  the release failed its verification (Suspend); with --for=proven also where too many
       of its pods failed or were restarted soon after its success
    3  the release was rolled back
    4  a newer release replaced it before it ended, or the workload was deleted
    5  AlterShield Server refused the release
    6  the workload is not defended, or left it
  124  the release did not end in time
  130  somebody interrupted the command`

func waitCommand(c *connection) *cobra.Command {
	f := waitFlags{}
	cmd := &cobra.Command{
		Use:   "wait " + usageOfTarget,
		Short: "Wait until a release ended; the exit code says how",
		Long:  waitLong[1:],
		Example: `  # After an apply: fails the pipeline unless the release succeeds
  kubectl apply -f sleep.yaml
  kubectl altershield wait deployment/sleep --timeout=15m

  # Until it ended in any way, with the result as JSON
  kubectl altershield wait deployment/sleep --for=done -o json

  # The same pipeline for namespaces that are not enrolled yet
  kubectl altershield wait deployment/sleep --not-defended=rollout`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.completeWorkloads,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.wait(cmd.Context(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.until, "for", "success", "success: exit code 0 only where the release succeeded. "+
		"proven: 0 only where it has also run well for long enough since. done: 0 also where it ended otherwise (codes 2 to 5)")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long to wait; 0 is without end")
	flags.StringVar(&f.version, "version", "", "wait for the last release of this version, in place of the current one")
	flags.Int64Var(&f.release, "release", 0, "wait for the release of this number, in place of the current one; it may be yet to come")
	flags.StringVar(&f.notDefended, "not-defended", "fail", "what to do where the workload is not defended. fail: exit code 6. rollout: wait for the rollout, as kubectl rollout status does")
	flags.StringVarP(&f.output, "output", "o", "", "json or yaml: print the result so, and the progress on the error stream")
	completeFlag(cmd, "version", c.completeVersions)
	completeFlag(cmd, "for", fixed("success", "proven", "done"))
	completeFlag(cmd, "not-defended", fixed("fail", "rollout"))
	completeFlag(cmd, "output", fixed("json", "yaml"))
	return cmd
}

func (f *waitFlags) check() error {
	switch {
	case !slices.Contains([]string{"success", "proven", "done"}, f.until):
		return remedy(fmt.Errorf("--for=%s is not known", f.until), "give success, proven or done")
	case !slices.Contains([]string{"fail", "rollout"}, f.notDefended):
		return remedy(fmt.Errorf("--not-defended=%s is not known", f.notDefended), "give fail or rollout")
	case !slices.Contains([]string{"", "json", "yaml"}, f.output):
		return remedy(fmt.Errorf("--output=%s is not known", f.output), "give json or yaml")
	case f.version != "" && f.release != 0:
		return remedy(errors.New("--version and --release are both given"), "give one of them")
	case f.release < 0 || f.timeout < 0:
		return remedy(errors.New("--release and --timeout are not negative"), "leave them away for the current release and for 10m")
	}
	return nil
}

// waiter is one wait.
type waiter struct {
	*connection
	waitFlags
	target
	api client.WithWatch
	uid types.UID
	// since is when it began.
	since time.Time
	// progress is where it tells of that, and told what it told, by line.
	progress io.Writer
	told     map[string]string
	awaited  awaited
	last     verdictOfWait
}

func (c *connection) wait(ctx context.Context, f waitFlags, args []string) error {
	if err := f.check(); err != nil {
		return err
	}
	api, t, err := c.reach(ctx, args)
	if err != nil {
		return err
	}
	s, err := c.observeTarget(ctx, api, t)
	if err != nil {
		return err
	}
	w := &waiter{connection: c, waitFlags: f, target: t, api: api, uid: s.w.UID, since: c.Now(), progress: c.Out, told: map[string]string{}}
	if f.output != "" {
		w.progress = c.ErrOut
	}
	if why := s.notDefended(); why != "" && f.release == 0 && f.version == "" {
		if f.notDefended == "rollout" {
			return w.rollout(ctx, why)
		}
		w.awaited.Version, w.last = s.w.Version, verdictOfWait{Ending: endedNotDefended, Message: "nothing is verified here: " + why}
		return w.end(nil)
	}
	if err := w.choose(ctx, s); err != nil {
		return err
	}
	w.awaited.Proven = f.until == "proven"
	printf(w.progress, "%s: waiting for %s\n", t, describeAwaited(w.awaited, s.w))
	return w.end(w.run(ctx))
}

// describeAwaited names the release with what it runs, where that is known.
func describeAwaited(a awaited, w *defense.Workload) string {
	if a.Version == w.Version {
		return fmt.Sprintf("%s: %s", a, strings.Join(w.Images, ", "))
	}
	return a.String()
}

// choose decides which release is waited for.
func (w *waiter) choose(ctx context.Context, s *situation) error {
	switch {
	case w.waitFlags.release > 0:
		w.awaited = awaited{Release: w.waitFlags.release}
		if w.waitFlags.release == s.w.Release() && s.w.RecordedVersion() == s.w.Version {
			w.awaited.Version = s.w.Version
		}
		return nil
	case w.waitFlags.version == "":
		w.awaited = defaultAwaited(s.w)
		if w.awaited.Version != s.w.Version {
			printf(w.progress, "%s: the operator went back from release %d to version %s, which is release %d; to wait for that one: %s\n",
				w.target, w.awaited.Release, s.w.Version, s.w.Release(), w.command(w.target, "wait", fmt.Sprintf("--release=%d", s.w.Release())))
		}
		return nil
	}
	changes, err := releasesOf(ctx, w.api, w.target, w.uid)
	if err != nil {
		return err
	}
	w.awaited, err = lastOfVersion(w.waitFlags.version, s.w, changes)
	return err
}

// lastOfVersion is the last release of a version, or of the one that begins so.
func lastOfVersion(begin string, w *defense.Workload, changes []v1alpha1.ChangeWorkload) (awaited, error) {
	numbers := map[string]int64{}
	note := func(version string, release int64) { numbers[version] = max(numbers[version], release) }
	for i := range changes {
		note(changes[i].Spec.Reversion, changes[i].Spec.Release)
		for _, p := range changes[i].Status.PreviousReleases {
			note(p.Version, p.Release)
		}
	}
	current := firstAwaited(w)
	note(w.Version, current.Release)
	known := make([]string, 0, len(numbers))
	for version := range numbers {
		known = append(known, version)
	}
	version, err := fullVersion(begin, known)
	switch {
	case err != nil:
		return awaited{}, remedy(fmt.Errorf("%s has released %w", w.Name, err), "see "+command("altershield", "history", w.Kind()+"/"+w.Name))
	case version == w.Version:
		return current, nil
	default:
		return awaited{Version: version, Release: numbers[version]}, nil
	}
}

// run waits, and leaves in last how it ended.
func (w *waiter) run(ctx context.Context) error {
	inNamespace := client.InNamespace(w.key.Namespace)
	watch := &watcher{
		api: w.api, timeout: w.timeout, trouble: w.tellTrouble,
		what: []watched{
			{&v1alpha1.ChangeWorkloadList{}, recordsOf(w.target)},
			{w.kind.ObjectList(), []client.ListOption{inNamespace, client.MatchingFields{"metadata.name": w.key.Name}}},
		},
	}
	err := watch.until(ctx, func(ctx context.Context) (bool, error) {
		view, err := w.look(ctx)
		if err != nil {
			return false, err
		}
		w.last, w.awaited = decideWait(w.awaited, view)
		if w.Now().Sub(w.since) >= slippedGrace {
			switch w.last.Meanwhile {
			case endedNotDefended:
				w.last.Ending = endedNotDefended
				w.last.Message = fmt.Sprintf("the operator has recorded no release in %s: it takes the workload for one that has had no recorded release, or it does not run", slippedGrace)
			case endedUnknown:
				return false, w.unknown(w.last.Message)
			default: // it goes on
			}
		}
		if w.last.Ending == goesOn {
			w.tell(progressOf(w.awaited, view, w.last))
		}
		return w.last.Ending != goesOn, nil
	})
	if errors.Is(err, errTimedOut) {
		if w.last.Meanwhile == endedUnknown {
			return w.unknown(w.last.Message)
		}
		w.last.Ending = endedTimeout
		if w.last.Meanwhile != goesOn {
			w.last.Ending = w.last.Meanwhile
		}
		w.last.Message = fmt.Sprintf("%s did not end in %s: %s", w.awaited, w.timeout, w.last.Message)
		if w.last.Stopped != "" {
			w.last.Message += "; " + w.last.Stopped
		}
		return nil
	}
	return err
}

// unknown is the error where a right is missing that tells whether there is a release.
func (w *waiter) unknown(message string) error {
	return remedy(errors.New(message), fmt.Sprintf("get this right, as the role view of the namespace %s has it, or name the release with --release", w.key.Namespace))
}

// tell tells the lines that are new.
func (w *waiter) tell(lines []progressLine) {
	for _, line := range lines {
		if w.told[line.Key] != line.Text {
			w.told[line.Key] = line.Text
			printf(w.progress, "%s: %s\n", w.target, line.Text)
		}
	}
}

// look reads what there is of the workload.
func (w *waiter) look(ctx context.Context) (v releaseView, err error) {
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(w.kind.GroupVersionKind())
	// The releases first: the workload is then at none that is older than these.
	if v.Changes, err = releasesOf(ctx, w.api, w.target, w.uid); err != nil {
		return v, err
	}
	switch err := w.api.Get(ctx, w.key, stored); {
	case apierrors.IsNotFound(err):
		return v, nil
	case err != nil:
		return v, fmt.Errorf("get %s in %s: %w", w.target, w.key.Namespace, err)
	case stored.GetUID() != w.uid:
		return v, nil // another one of its name
	}
	s := &situation{target: w.target, now: w.Now()}
	if err := s.take(stored); err != nil {
		return v, err
	}
	if s.namespace, err = readNamespace(ctx, w.api, w.key.Namespace); err != nil {
		return v, err
	}
	v.Workload, v.NotDefended = s.w, s.notDefended()
	if s.w.RecordedVersion() == "" && v.NotDefended == "" && len(v.Changes) == 0 {
		v.Slipped, v.Unknown, err = mayHaveSlipped(ctx, w.api, s)
	}
	return v, err
}

// slippedSince is from when on admission should have seen every release of a workload.
// Where it cannot be told since when the operator knows its kind, that is from when on
// the namespace was enrolled; zero where that is not known either.
func slippedSince(ctx context.Context, r client.Reader, s *situation) time.Time {
	since := defense.EnrolledSince(s.namespace.ManagedFields)
	if since.IsZero() || defense.ConditionOfKind(s.w.GVK) == "" {
		return since
	}
	var blocking v1alpha1.OpsConfigInfo
	if r.Get(ctx, client.ObjectKey{Namespace: operatorIn(ctx, r, ""), Name: settings.NameBlocking}, &blocking) != nil {
		return since
	}
	return defense.DefendedSince(since, &blocking, s.w.GVK)
}

// mayHaveSlipped says that a workload without a version of its own may have released
// past admission: its revision is not older than the enrolment of its namespace, as the
// operator decides it. unknown is the right that is missing to tell.
func mayHaveSlipped(ctx context.Context, r client.Reader, s *situation) (slipped bool, unknown string, err error) {
	if s.namespace == nil {
		return false, fmt.Sprintf("you have no right to get the namespace %s", s.key.Namespace), nil
	}
	since := slippedSince(ctx, r, s)
	if since.IsZero() {
		return false, "", nil
	}
	observed, err := s.kind.Get(ctx, ownerReader{r}, s.key)
	switch {
	case apierrors.IsForbidden(err):
		return false, err.Error(), nil
	case err != nil:
		return false, "", err
	case observed == nil: // gone since then: the next look sees it
		return true, "", nil
	}
	// Also within the second in which it was enrolled: times are in seconds.
	return observed.RevisionCreated.IsZero() || !observed.RevisionCreated.Before(since), "", nil
}

// rollout waits for the rollout of a workload that is not defended.
func (w *waiter) rollout(ctx context.Context, why string) error {
	printf(w.progress, "%s: not defended: %s; waiting for its rollout\n", w.target, why)
	watch := &watcher{
		api: w.api, timeout: w.timeout, trouble: w.tellTrouble,
		what: []watched{{w.kind.ObjectList(), []client.ListOption{client.InNamespace(w.key.Namespace), client.MatchingFields{"metadata.name": w.key.Name}}}},
	}
	err := watch.until(ctx, func(ctx context.Context) (bool, error) {
		observed, err := w.kind.Get(ctx, ownerReader{w.api}, w.key)
		if err != nil {
			return false, err
		}
		w.last = decideRollout(observed, w.uid)
		if observed != nil {
			w.awaited.Version = observed.Version
		}
		if w.last.Ending == goesOn {
			w.tell([]progressLine{{"state", w.last.Message}})
		}
		return w.last.Ending != goesOn, nil
	})
	if errors.Is(err, errTimedOut) {
		w.last = verdictOfWait{Ending: endedTimeout, Message: strings.TrimSuffix(fmt.Sprintf("the rollout is not complete after %s: %s", w.timeout, w.last.Message), ": ")}
		err = nil
	}
	return w.end(err)
}

// decideRollout says how the rollout of a workload without defense ended.
func decideRollout(observed *defense.Workload, uid types.UID) verdictOfWait {
	switch {
	case observed == nil || observed.UID != uid || observed.Deleting:
		return verdictOfWait{Ending: endedCanceled, Message: "the workload was deleted"}
	case observed.Rollout.Complete:
		return verdictOfWait{Ending: endedSuccess, Message: "the rollout is complete; nothing was verified"}
	case observed.Rollout.Stuck:
		return verdictOfWait{Ending: endedSuspend, Message: "the rollout does not move: " + observed.Rollout.Message}
	case observed.Rollout.Partitioned:
		return verdictOfWait{Ending: endedSuccess, Message: fmt.Sprintf(
			"the rollout is complete but for %d of %d pods, which its partition keeps at the version before; nothing was verified", observed.Partition, observed.Replicas)}
	case observed.OnDelete:
		return verdictOfWait{Message: "pods are replaced only when somebody deletes them (updateStrategy OnDelete)"}
	case observed.Paused:
		return verdictOfWait{Message: fmt.Sprintf("the rollout is %s%s; to let it go on: %s", observed.Words.Halted(), observed.Words.Means(), defense.Kubectl(observed.Words.GoOn, observed.Namespace))}
	default:
		return verdictOfWait{Message: "pods are being replaced"}
	}
}

// end tells how it ended, and makes the exit code.
func (w *waiter) end(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return &ExitError{Code: codeInterrupted, Err: fmt.Errorf("interrupted; %s goes on", w.awaited)}
	case err != nil:
		return err
	}
	code := w.last.Ending.code()
	if w.until == "done" && code > 1 && code <= endedFailed.code() {
		code = 0
	}
	if w.output != "" {
		if err := w.print(code); err != nil {
			return err
		}
	} else {
		printf(w.Out, "%s: %s\n", w.target, w.last.Message)
	}
	if what := w.lookNext(); what != "" {
		printf(w.progress, "see: %s\n", what)
	}
	if code == 0 {
		return nil
	}
	return &ExitError{Code: code}
}

// lookNext is the command to look with next; empty where all is well.
func (w *waiter) lookNext() string {
	switch w.last.Ending {
	case endedSuspend, endedNotProven, endedRollback, endedFailed:
		return w.command(w.target, "explain")
	case endedCanceled, endedTimeout:
		return w.command(w.target, "status")
	case endedNotDefended:
		return w.commandIn("", "check")
	default:
		return ""
	}
}

func (w *waiter) print(code int) error {
	result := WaitResult{
		Kind: w.kind.GroupVersionKind().Kind, Namespace: w.key.Namespace, Name: w.key.Name, Version: w.awaited.Version, Release: w.awaited.Release,
		Ending: string(w.last.Ending), Message: w.last.Message, ExitCode: code,
	}
	return printStructured(w.Out, w.output, result)
}

// reach connects to the cluster, and finds the workload that the arguments name.
func (c *connection) reach(ctx context.Context, args []string) (client.WithWatch, target, error) {
	namespace, err := c.namespace()
	if err != nil {
		return nil, target{}, err
	}
	// Before the cluster is asked: what is typed wrongly is so anywhere.
	if _, err := parseTarget(workload.Defended(), namespace, args...); err != nil {
		return nil, target{}, err
	}
	api, err := c.client()
	if err != nil {
		return nil, target{}, err
	}
	t, err := findTarget(ctx, api, workload.Defended(), namespace, args...)
	return api, t, err
}
