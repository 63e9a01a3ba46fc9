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
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// slippedGrace is how long to wait for the record of a release that admission may not have seen.
const slippedGrace = 30 * time.Second

// codeInterrupted is the exit code of a wait that the user interrupted.
const codeInterrupted = 130

// WaitResult is the output of wait -o json.
type WaitResult struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata names the workload.
	Metadata Metadata `json:"metadata"`
	// Version and Release of the awaited release; Release is 0 for none.
	Version string `json:"version"`
	Release int64  `json:"release"`
	// Ending is Success, NoRelease, Suspend, NotProven, Rollback, Canceled, Failed, NotDefended or Timeout.
	Ending string `json:"ending"`
	// Message explains Ending.
	Message string `json:"message"`
	// ExitCode of the command.
	ExitCode int `json:"exitCode"`
}

// Values of --for.
const (
	forSuccess = "success"
	forProven  = "proven"
)

// waitFlags are the flags of wait.
type waitFlags struct {
	until, version string
	release        int64
	timeout        time.Duration
	output
}

const waitLong = `
Wait until a release of a workload ended, and return the result as exit code. Use it in
pipelines in place of kubectl rollout status, right after an apply. It waits for the
release that is current when it begins, also if a newer release follows. If the operator
rolled that release back before the command begins, the result is Rollback: to wait for
the restored version, use --release or --version.

Exit codes:
    0  the release succeeded; or there is none: the template has not changed since the
       workload was enrolled
    1  an error: no such workload, no right to read it, a wrong flag
    2  the release failed its verification (Suspend); with --for=proven also if too many
       of its pods failed or were restarted soon after its success
    3  the release was rolled back
    4  a newer release replaced it before it ended, or the workload was deleted
    5  AlterShield Server refused the release
    6  the workload is not defended, or the operator recorded no release for 30 seconds
  124  the release did not end in time
  130  the user interrupted the command`

func waitCommand(c *connection) *cobra.Command {
	f := waitFlags{}
	cmd := &cobra.Command{
		Use:   "wait " + usageOfTarget,
		Short: "Wait until a release ended; the exit code says how",
		Long:  waitLong[1:],
		Example: `  # After an apply: fails the pipeline unless the release succeeds
  kubectl apply -f sleep.yaml
  kubectl altershield wait deployment/sleep --timeout=15m

  # Until the release has also run well for long enough, with the result as JSON
  kubectl altershield wait deployment/sleep --for=proven -o json`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.completeWorkloads,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.wait(cmd.Context(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.until, "for", forSuccess, "success: until the release succeeded. proven: until it has also run well for long enough")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long to wait; 0 waits forever")
	flags.StringVar(&f.version, "version", "", "wait for the last release of this version, in place of the current one")
	flags.Int64Var(&f.release, "release", 0, "wait for the release of this number, in place of the current one; it may be yet to come")
	f.output = newOutput(cmd, "", " The progress goes to the error stream then.")
	completeFlag(cmd, "version", c.completeVersions)
	completeFlag(cmd, "for", fixed(forSuccess, forProven))
	return cmd
}

func (f *waitFlags) check() error {
	switch {
	case f.until != forSuccess && f.until != forProven:
		return remedy(fmt.Errorf("--for=%s is not known", f.until), "give success or proven")
	case f.version != "" && f.release != 0:
		return remedy(errors.New("--version and --release are both given"), "give one of them")
	case f.release < 0 || f.timeout < 0:
		return remedy(errors.New("--release and --timeout are not negative"), "omit them for the current release and 10m")
	}
	return nil
}

// waiter is one wait.
type waiter struct {
	*connection
	waitFlags
	target
	api     client.WithWatch
	uid     types.UID
	since   time.Time
	printer printers.ResourcePrinter
	// progress is the stream of progress lines, and printed has the last line of each key.
	progress io.Writer
	printed  map[string]string
	awaited  awaited
	last     verdictOfWait
}

func (c *connection) wait(ctx context.Context, f waitFlags, args []string) error {
	printer, err := f.printer()
	if err := errors.Join(err, f.check()); err != nil {
		return err
	}
	api, t, err := c.reach(ctx, args)
	if err != nil {
		return err
	}
	s, err := c.read(ctx, api, t)
	if err != nil {
		return err
	}
	w := &waiter{
		connection: c, waitFlags: f, target: t, api: api, uid: s.workload.UID, since: c.Now(),
		printer: printer, progress: c.Out, printed: map[string]string{},
	}
	if printer != nil {
		w.progress = c.ErrOut
	}
	if why := s.notDefended(); why != "" && f.release == 0 && f.version == "" {
		w.awaited.Version, w.last = s.workload.Version, verdictOfWait{Ending: endedNotDefended, Message: "nothing is verified here: " + why}
		return w.end(nil)
	}
	if err := w.choose(ctx, s); err != nil {
		return err
	}
	w.awaited.Proven = f.until == forProven
	images := ""
	if w.awaited.Version == s.workload.Version {
		images = ": " + strings.Join(s.workload.Images, ", ")
	}
	printf(w.progress, "%s: waiting for %s\n", t, w.awaited.String()+images)
	return w.end(w.run(ctx))
}

// choose decides which release to wait for.
func (w *waiter) choose(ctx context.Context, s *snapshot) error {
	switch at := s.workload; {
	case w.waitFlags.release > 0:
		w.awaited = awaited{Release: w.waitFlags.release}
		if w.waitFlags.release == at.Release() && at.RecordedVersion() == at.Version {
			w.awaited.Version = at.Version
		}
		return nil
	case w.waitFlags.version == "":
		w.awaited = defaultAwaited(at)
		if w.awaited.Version != at.Version {
			printf(w.progress, "%s: the operator rolled release %d back to version %s, which is release %d; to wait for the restored version: %s\n",
				w.target, w.awaited.Release, at.Version, at.Release(), w.command(w.target, "wait", fmt.Sprintf("--release=%d", at.Release())))
		}
		return nil
	}
	changes, err := releasesOf(ctx, w.api, w.target, w.uid)
	if err != nil {
		return err
	}
	w.awaited, err = lastOfVersion(w.waitFlags.version, s.workload, changes)
	return err
}

// lastOfVersion returns the last release of a version, which may be given by its beginning.
func lastOfVersion(begin string, w *workload.Workload, changes []v1alpha1.ChangeWorkload) (awaited, error) {
	numbers := map[string]int64{}
	var known []string
	note := func(version string, release int64) {
		numbers[version], known = max(numbers[version], release), append(known, version)
	}
	for i := range changes {
		note(changes[i].Spec.Reversion, changes[i].Spec.Release)
		for _, p := range changes[i].Status.PreviousReleases {
			note(p.Version, p.Release)
		}
	}
	current := firstAwaited(w)
	note(w.Version, current.Release)
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

// run waits, and stores the result in last.
func (w *waiter) run(ctx context.Context) error {
	watch := &watcher{
		api: w.api, timeout: w.timeout, trouble: w.printTrouble,
		what: []watched{{&v1alpha1.ChangeWorkloadList{}, recordsOf(w.target)}, watchedTarget(w.target)},
	}
	err := watch.until(ctx, func(ctx context.Context) (bool, error) {
		view, err := w.load(ctx)
		if err != nil {
			return false, err
		}
		w.last, w.awaited = decideWait(w.awaited, view)
		if w.Now().Sub(w.since) >= slippedGrace {
			switch w.last.Meanwhile {
			case endedNotDefended:
				w.last.Ending = endedNotDefended
				w.last.Message = fmt.Sprintf("the operator has recorded no release in %s: "+
					"it treats the workload as one without a recorded release, or it does not run", slippedGrace)
			case endedUnknown:
				return false, w.unknown()
			default: // it goes on
			}
		}
		if w.last.Ending == goesOn {
			w.report(progressOf(w.awaited, view, w.last))
		}
		return w.last.Ending != goesOn, nil
	})
	if !errors.Is(err, errTimedOut) {
		return err
	}
	if w.last.Meanwhile == endedUnknown {
		return w.unknown()
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

// unknown returns the error for a missing right, without which it is unknown whether a release exists.
func (w *waiter) unknown() error {
	do := "get this right, as the role view of the namespace %s has it, or name the release with --release"
	return remedy(errors.New(w.last.Message), fmt.Sprintf(do, w.key.Namespace))
}

// report prints the lines that are new.
func (w *waiter) report(lines []progressLine) {
	for _, line := range lines {
		if w.printed[line.Key] != line.Text {
			w.printed[line.Key] = line.Text
			printf(w.progress, "%s: %s\n", w.target, line.Text)
		}
	}
}

// load reads the workload and its releases.
func (w *waiter) load(ctx context.Context) (v releaseView, err error) {
	// The releases first, so that the workload is never older than its releases.
	if v.Changes, err = releasesOf(ctx, w.api, w.target, w.uid); err != nil {
		return v, err
	}
	s, err := w.connection.read(ctx, w.api, w.target)
	gone := &remedied{}
	switch {
	case errors.As(err, &gone), err == nil && s.workload.UID != w.uid:
		return v, nil // or another workload of its name
	case err != nil:
		return v, err
	}
	v.Workload, v.NotDefended = s.workload, s.notDefended()
	if s.workload.RecordedVersion() == "" && v.NotDefended == "" && len(v.Changes) == 0 {
		v.Slipped, v.Unknown, err = mayHaveSlipped(ctx, w.api, s)
	}
	return v, err
}

// slippedSince returns the time since which admission should see each release of a workload: the time since which the operator
// defends its kind or, if that is unknown, the enrolment of its namespace. It is zero if both are unknown.
func slippedSince(ctx context.Context, r client.Reader, s *snapshot) time.Time {
	var blocking v1alpha1.OpsConfigInfo
	if s.defendedSince.IsZero() || defense.ConditionOfKind(s.workload.GVK) == "" ||
		r.Get(ctx, client.ObjectKey{Namespace: operatorIn(ctx, r, ""), Name: settings.NameBlocking}, &blocking) != nil {
		return s.defendedSince
	}
	return defense.DefendedSince(s.defendedSince, &blocking, s.workload.GVK)
}

// mayHaveSlipped reports whether admission may have missed the release of a workload without a recorded version: its revision is
// not older than the enrolment of its namespace. unknown names a right that the user lacks to know.
func mayHaveSlipped(ctx context.Context, r client.Reader, s *snapshot) (slipped bool, unknown string, err error) {
	if s.namespace == nil {
		return false, fmt.Sprintf("you have no right to get the namespace %s", s.key.Namespace), nil
	}
	since := slippedSince(ctx, r, s)
	if since.IsZero() {
		return false, "", nil
	}
	observed, err := s.kind.Get(ctx, newReader(r), s.key)
	switch {
	case apierrors.IsForbidden(err):
		return false, err.Error(), nil
	case err != nil:
		return false, "", err
	case observed == nil: // gone since then: the next read finds it
		return true, "", nil
	}
	// Also within the second in which it was enrolled: times are in seconds.
	return observed.RevisionCreated.IsZero() || !observed.RevisionCreated.Before(since), "", nil
}

// end prints how the release ended, and returns the exit code as an error.
func (w *waiter) end(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return &ExitError{Code: codeInterrupted, Err: fmt.Errorf("interrupted; %s goes on", w.awaited)}
	case err != nil:
		return err
	}
	code := w.last.Ending.code()
	if w.printer == nil {
		printf(w.Out, "%s: %s\n", w.target, w.last.Message)
	} else {
		result := WaitResult{
			Metadata: Metadata{w.key.Namespace, w.key.Name}, Version: w.awaited.Version, Release: w.awaited.Release,
			Ending: string(w.last.Ending), Message: w.last.Message, ExitCode: code,
		}
		result.APIVersion, result.Kind = w.kind.GroupVersionKind().ToAPIVersionAndKind()
		if err := printObject(w.Out, w.printer, result); err != nil {
			return err
		}
	}
	if code == 0 {
		return nil
	}
	next := w.command(w.target, "status")
	if w.last.Ending == endedNotDefended {
		next = w.commandIn("", "check")
	}
	printf(w.progress, "see: %s\n", next)
	return &ExitError{Code: code}
}
