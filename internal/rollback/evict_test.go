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

package rollback

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// podAt returns an available pod of three, of the restored version.
func podAt(index int32, more ...func(*workload.Place)) workload.Place {
	p := workload.Place{
		Pod: workload.Pod{
			Namespace: "shop", Name: fmt.Sprintf("web-%d", index), UID: types.UID(fmt.Sprintf("uid-%d", index)),
			Created: testNow.Add(-time.Hour), Ready: true, ReadySince: testNow.Add(-time.Hour), Index: index,
		},
		ResourceVersion: "1", Version: versionA, Current: true,
	}
	for _, change := range more {
		change(&p)
	}
	return p
}

// sticks changes a pod to one of the abandoned version that was never Ready.
func sticks(p *workload.Place) {
	p.Version, p.Current, p.Ready, p.ReadySince = versionB, false, false, time.Time{}
	p.UnreadySince = p.Created
}

// stuckSet returns a StatefulSet at version A, restored a minute ago from version B; the last pod,
// of version B, is stuck.
func stuckSet() EvictionInput {
	reasons, err := json.Marshal(map[string]QuarantineReason{
		versionB: {Time: testNow.Add(-time.Minute).UTC().Format(time.RFC3339), Cause: v1alpha1.ReasonNeverStarted, Release: 2, To: versionA},
	})
	if err != nil {
		panic(err) // strings only
	}
	w := &workload.Workload{
		GVK: metav1.SchemeGroupVersion.WithKind("StatefulSet"), Namespace: "shop", Name: "web", UID: "set",
		Labels: map[string]string{v1alpha1.VersionLabel: versionA}, Version: versionA, Replicas: 3, Revision: "web-1", Rolling: true,
		Annotations: map[string]string{
			v1alpha1.ReleaseAnnotation: "3", v1alpha1.QuarantinedAnnotation: versionB, v1alpha1.QuarantineReasonAnnotation: string(reasons),
		},
	}
	return EvictionInput{
		Now: testNow, After: EvictAfter, Settings: settings.Default(), Workload: w, Enrolled: true, Live: true,
		Places: workload.Places{Ordered: true, Pods: []workload.Place{podAt(0), podAt(1), podAt(2, sticks)}},
	}
}

func releaseOf(version string, number int64) (c v1alpha1.ChangeWorkload) {
	c.Spec.Reversion, c.Spec.Release = version, number
	return c
}

// recordOf returns the record of a release of a version that began a minute ago.
func recordOf(version string, number int64, state v1alpha1.ChangeWorkloadStatusType) v1alpha1.ChangeWorkload {
	c := releaseOf(version, number)
	c.Status.Status, c.Status.ObservedRelease, c.Status.StartTimeUnix = state, number, testNow.Add(-time.Minute).Unix()
	return c
}

// TestEvictByRecord covers versions that a fix replaced, which are in no quarantine: their record
// decides whether a stuck pod may be evicted.
func TestEvictByRecord(t *testing.T) {
	for name, test := range map[string]struct {
		state   v1alpha1.ChangeWorkloadStatusType
		history []workload.Revision
		change  func(*EvictionInput)
		want    string
	}{
		"failed":                {state: v1alpha1.ChangeWorkloadSuspend, want: "evict"},
		"rolled back":           {state: v1alpha1.ChangeWorkloadRollback, want: "evict"},
		"never succeeded":       {state: v1alpha1.ChangeWorkloadCanceled, want: "evict"},
		"refused by the server": {state: v1alpha1.ChangeWorkloadFailed, want: "evict"},
		"failed after it succeeded": {
			state: v1alpha1.ChangeWorkloadSuspend, history: []workload.Revision{{Version: versionB, Release: 2}},
			want: "evict",
		},
		"succeeded": {state: v1alpha1.ChangeWorkloadSuccess, want: "idle"},
		"failed soon after it succeeded": {
			state: v1alpha1.ChangeWorkloadSuccess, change: func(in *EvictionInput) {
				meta.SetStatusCondition(&in.Past.Changes[1].Status.Conditions, metav1.Condition{
					Type: v1alpha1.ConditionProven, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPodFailed})
			},
			want: "evict",
		},
		"succeeded earlier": {
			state: v1alpha1.ChangeWorkloadCanceled, history: []workload.Revision{{Version: versionB, Release: 1}},
			want: "idle",
		},
		"a baseline": {state: "none", history: []workload.Revision{{Version: versionB}}, want: "idle"},
		"unknown":    {state: "none", want: "NotEvicted"},
		"it is the current revision": {
			state: v1alpha1.ChangeWorkloadSuspend, change: func(in *EvictionInput) { in.Places.Kept = versionB },
			want: "evict",
		},
		"its record is a later release's": {
			state: v1alpha1.ChangeWorkloadSuspend, change: func(in *EvictionInput) { in.Past.Changes[1].Spec.Release = 4 },
			want: "NotEvicted",
		},
		"the fix has no record yet": {
			state: v1alpha1.ChangeWorkloadSuspend, change: func(in *EvictionInput) { in.Past.Changes = in.Past.Changes[1:] },
			want: "waits",
		},
		"the fix has only an old record": {
			state: v1alpha1.ChangeWorkloadSuspend, change: func(in *EvictionInput) { in.Past.Changes[0].Status.ObservedRelease = 1 },
			want: "waits",
		},
		"the fix came just now": {state: v1alpha1.ChangeWorkloadSuspend, change: func(in *EvictionInput) {
			in.Past.Changes[0].Status.StartTimeUnix = testNow.Add(-29 * time.Second).Unix()
		}, want: "waits"},
		"it is ready": {state: v1alpha1.ChangeWorkloadSuspend, change: func(in *EvictionInput) { in.Places.Pods[2].Ready = true }, want: "idle"},
		"it was recreated": {state: v1alpha1.ChangeWorkloadSuspend, change: func(in *EvictionInput) {
			in.Past.Changes[0].Status.StartTimeUnix -= 100
			in.Places.Pods[2].Created = testNow.Add(-time.Minute)
		}, want: "Recreated"},
		"the cache says so": {state: v1alpha1.ChangeWorkloadSuspend, change: func(in *EvictionInput) { in.Live = false }, want: "live"},
		"the setting is off": {
			state: v1alpha1.ChangeWorkloadSuspend, change: func(in *EvictionInput) { in.Settings.Eviction = false },
			want: "NotEvicted",
		},
		"unknown, and Ordered": {state: "none", change: func(in *EvictionInput) { in.Places.Pods[1] = podAt(1, sticks) }, want: "NotEvicted"},
	} {
		t.Run(name, func(t *testing.T) {
			in := stuckSet()
			in.Workload.Annotations = map[string]string{v1alpha1.ReleaseAnnotation: "3"}
			in.Past.Changes = []v1alpha1.ChangeWorkload{recordOf(versionA, 3, v1alpha1.ChangeWorkloadRunning)}
			if test.state != "none" {
				in.Past.Changes = append(in.Past.Changes, recordOf(versionB, 2, test.state))
			}
			in.Past.History = test.history
			if test.change != nil {
				test.change(&in)
			}
			plan := DecideEviction(in)
			got := "waits"
			switch {
			case plan.Idle:
				got = "idle"
			case plan.NeedsLive:
				got = "live"
			case plan.Evict:
				got = "evict"
			case plan.Block != nil:
				got = plan.Block.Reason
			}
			if got != test.want || !MayNeedEviction(in.Workload) {
				t.Errorf("got %q, want %q; %+v", got, test.want, plan)
			}
			if plan.Block != nil && !strings.HasSuffix(plan.Block.Message, " -n shop") {
				t.Errorf("the message has no command: %s", plan.Block.Message)
			}
		})
	}
}

func TestDecideEviction(t *testing.T) {
	// reason changes why version B was abandoned.
	reason := func(in *EvictionInput, change func(*QuarantineReason)) {
		var reasons map[string]QuarantineReason
		if err := json.Unmarshal([]byte(in.Workload.Annotations[v1alpha1.QuarantineReasonAnnotation]), &reasons); err != nil {
			t.Fatal(err)
		}
		r := reasons[versionB]
		change(&r)
		reasons[versionB] = r
		data, err := json.Marshal(reasons)
		if err != nil {
			t.Fatal(err)
		}
		in.Workload.Annotations[v1alpha1.QuarantineReasonAnnotation] = string(data)
	}
	rfc := func(ago time.Duration) string { return testNow.Add(-ago).UTC().Format(time.RFC3339) }
	// complete sets version B as the version of pods that are not updated yet: all pods were of it.
	complete := func(in *EvictionInput) { in.Places.Kept = versionB }
	bare := func(in *EvictionInput) {
		complete(in)
		in.Workload.Bare = true
	}
	isB := func(p *workload.Place) { p.Version, p.Current = versionB, false }
	created := func(after time.Duration) func(*workload.Place) {
		return func(p *workload.Place) {
			p.Created = testNow.Add(-time.Minute + after)
			p.UnreadySince = p.Created
		}
	}
	const idle, unclear = "idle", "the template to be seen by its controller, and recorded"
	for name, test := range map[string]struct {
		change func(*EvictionInput)
		// want is the evicted pod, idle, or what is waited for.
		want string
		in   time.Duration
	}{
		"stuck":                     {func(*EvictionInput) {}, "evict web-2", LookAgain},
		"from the cache":            {func(in *EvictionInput) { in.Live = false }, "needs live", 0},
		"the setting is off":        {func(in *EvictionInput) { in.Settings.Eviction = false }, "block web-2", LookAgain},
		"pods created all at once":  {func(in *EvictionInput) { in.Places.Ordered = false }, "evict web-2", LookAgain},
		"with another kind's names": {func(in *EvictionInput) { in.Workload.GVK.Kind = "CloneSet" }, "evict web-2", LookAgain},

		"not enrolled":    {func(in *EvictionInput) { in.Enrolled = false }, idle, 0},
		"deleting":        {func(in *EvictionInput) { in.Workload.Deleting = true }, idle, 0},
		"opted out":       {func(in *EvictionInput) { in.Workload.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled }, idle, 0},
		"in observe mode": {func(in *EvictionInput) { in.Settings.Observe = true }, idle, 0},
		"owned":           {func(in *EvictionInput) { in.Workload.Owner = "prometheus k8s" }, idle, 0},
		"owned, and enforced": {func(in *EvictionInput) {
			in.Workload.Owner, in.Workload.Labels[v1alpha1.DefenseLabel] = "prometheus k8s", v1alpha1.DefenseEnforced
		}, "evict web-2", LookAgain},
		"paused":              {func(in *EvictionInput) { in.Workload.Paused = true }, idle, 0},
		"OnDelete":            {func(in *EvictionInput) { in.Workload.OnDelete = true }, idle, 0},
		"generation unseen":   {func(in *EvictionInput) { in.Workload.Rollout.Stale = true }, unclear, LookAgain},
		"revision unknown":    {func(in *EvictionInput) { in.Workload.Revision = "" }, unclear, LookAgain},
		"slipped, unrecorded": {func(in *EvictionInput) { in.Workload.Labels[v1alpha1.VersionLabel] = versionB }, unclear, LookAgain},

		"unclear, and opted out": {func(in *EvictionInput) {
			in.Workload.Rollout.Stale, in.Workload.Labels[v1alpha1.DefenseLabel] = true, v1alpha1.DefenseDisabled
		}, idle, 0},

		"nothing was abandoned": {func(in *EvictionInput) {
			in.Workload.Annotations = map[string]string{v1alpha1.ReleaseAnnotation: "3"}
		}, "block web-2", LookAgain},
		"quarantine without reason": {func(in *EvictionInput) {
			delete(in.Workload.Annotations, v1alpha1.QuarantineReasonAnnotation)
		}, "block web-2", LookAgain},
		"reason without quarantine": {func(in *EvictionInput) {
			delete(in.Workload.Annotations, v1alpha1.QuarantinedAnnotation)
		}, "block web-2", LookAgain},
		"a reason of another writer": {func(in *EvictionInput) {
			reason(in, func(r *QuarantineReason) { r.Cause = "Mine" })
		}, "block web-2", LookAgain},
		"a time of another writer": {func(in *EvictionInput) {
			reason(in, func(r *QuarantineReason) { r.Time = "yesterday" })
		}, "block web-2", LookAgain},
		"of this release": {func(in *EvictionInput) { reason(in, func(r *QuarantineReason) { r.Release = 3 }) }, "block web-2", LookAgain},
		"overridden": {func(in *EvictionInput) {
			ParseQuarantine(in.Workload.Annotations, testNow).Override(versionB, "ann").Annotate(in.Workload.Annotations)
		}, "block web-2", LookAgain},
		"its time is over": {
			func(in *EvictionInput) { reason(in, func(r *QuarantineReason) { r.Until = rfc(time.Second) }) }, "evict web-2", LookAgain,
		},
		"a user went back": {func(in *EvictionInput) { reason(in, func(r *QuarantineReason) { r.By = "ann" }) }, "evict web-2", LookAgain},
		"a user released over it": {
			func(in *EvictionInput) { in.Workload.Annotations[v1alpha1.ReleaseAnnotation] = "7" }, "evict web-2", LookAgain,
		},
		"it came back, and is remembered": {func(in *EvictionInput) {
			in.Workload.Annotations[v1alpha1.ReleaseAnnotation] = "8"
			in.Past.History = []workload.Revision{{Version: versionA, Release: 8}, {Version: versionB, Release: 7}}
		}, idle, 0},
		"it came back, and has a record": {func(in *EvictionInput) {
			in.Workload.Annotations[v1alpha1.ReleaseAnnotation] = "8"
			in.Past.Changes = []v1alpha1.ChangeWorkload{releaseOf(versionA, 8), recordOf(versionB, 7, v1alpha1.ChangeWorkloadSuccess)}
		}, idle, 0},
		"it was released before it was abandoned": {func(in *EvictionInput) {
			in.Past.History = []workload.Revision{{Version: versionA, Release: 3}, {Version: versionB, Release: 1}}
			in.Past.Changes = []v1alpha1.ChangeWorkload{releaseOf(versionA, 3), releaseOf(versionB, 2)}
		}, "evict web-2", LookAgain},
		"abandoned because it failed": {func(in *EvictionInput) {
			reason(in, func(r *QuarantineReason) { r.Cause = v1alpha1.ReasonVerificationFailed })
		}, "evict web-2", LookAgain},
		"abandoned on request": {func(in *EvictionInput) {
			reason(in, func(r *QuarantineReason) { r.Cause = v1alpha1.ReasonRollbackRequested })
		}, "evict web-2", LookAgain},
		"abandoned just now": {
			func(in *EvictionInput) { reason(in, func(r *QuarantineReason) { r.Time = rfc(10 * time.Second) }) }, "a pod to be stuck for longer",
			20 * time.Second,
		},
		"abandoned 30 s ago": {
			func(in *EvictionInput) { reason(in, func(r *QuarantineReason) { r.Time = rfc(EvictAfter) }) }, "evict web-2", LookAgain,
		},
		"not ready since just now": {
			func(in *EvictionInput) { in.Places.Pods[2].UnreadySince = testNow.Add(-5 * time.Second) }, "a pod to be stuck for longer",
			25 * time.Second,
		},
		"created just now": {func(in *EvictionInput) {
			in.Places.Pods[2].Created, in.Places.Pods[2].UnreadySince = testNow.Add(-time.Second), time.Time{}
		}, "a pod to be stuck for longer", 29 * time.Second},
		"a kubelet's clock is ahead": {
			func(in *EvictionInput) { in.Places.Pods[2].UnreadySince = testNow.Add(time.Hour) }, "evict web-2", LookAgain,
		},

		"it became ready":             {func(in *EvictionInput) { in.Places.Pods[2].Ready = true }, idle, 0},
		"it is terminating":           {func(in *EvictionInput) { in.Places.Pods[2].Terminating = true }, idle, 0},
		"it ended":                    {func(in *EvictionInput) { in.Places.Pods[2].Ended = true }, idle, 0},
		"of the current revision":     {func(in *EvictionInput) { in.Places.Pods[2].Current = true }, idle, 0},
		"of the version restored":     {func(in *EvictionInput) { in.Places.Pods[2].Version = versionA }, idle, 0},
		"of a version not known":      {func(in *EvictionInput) { in.Places.Pods[2].Version = "" }, "block web-2", LookAgain},
		"of a version that is free":   {func(in *EvictionInput) { in.Places.Pods[2].Version = "cccc" }, "block web-2", LookAgain},
		"kept by a partition":         {func(in *EvictionInput) { in.Workload.Partition = 3 }, idle, 0},
		"the first above a partition": {func(in *EvictionInput) { in.Workload.Partition = 2 }, "evict web-2", LookAgain},
		"held, and the one before is recreated": {func(in *EvictionInput) {
			in.Places.Kept, in.Workload.Pace.Partition = versionA, 3
		}, "evict web-2", LookAgain},
		"held, and it would be recreated": {func(in *EvictionInput) {
			complete(in)
			in.Workload.Pace.Partition = 3
		}, "recreated web-2", LookAgain},
		"held, and it would be recreated, from the cache": {func(in *EvictionInput) {
			complete(in)
			in.Workload.Pace.Partition, in.Live = 3, false
		}, "needs live", 0},
		"held, and it may be updated": {func(in *EvictionInput) {
			complete(in)
			in.Workload.Pace.Partition = 2
		}, "evict web-2", LookAgain},
		"held, and the first of two would be recreated": {func(in *EvictionInput) {
			complete(in)
			in.Workload.Pace.Partition, in.Places.Pods[1] = 2, podAt(1, sticks)
		}, "recreated web-1", LookAgain},
		"held, and one of two would be recreated, all at once": {func(in *EvictionInput) {
			complete(in)
			in.Workload.Pace.Partition, in.Places.Pods[1], in.Places.Ordered = 2, podAt(1, sticks), false
		}, "evict web-2", LookAgain},
		"held, and both would be recreated, all at once": {func(in *EvictionInput) {
			complete(in)
			in.Workload.Pace.Partition, in.Places.Pods[1], in.Places.Ordered = 3, podAt(1, sticks), false
		}, "recreated web-2", LookAgain},
		"held, and the setting is off": {func(in *EvictionInput) {
			complete(in)
			in.Workload.Pace.Partition, in.Settings.Eviction = 3, false
		}, "recreated web-2", LookAgain},
		"no partition, others are as before": {func(in *EvictionInput) {
			bare(in)
			in.Places.Pods = []workload.Place{podAt(0, sticks), podAt(1, isB), podAt(2, isB)}
		}, "recreated web-0", LookAgain},
		"no partition, those before it are as before": {func(in *EvictionInput) {
			bare(in)
			in.Places.Pods = []workload.Place{podAt(0, isB), podAt(1, isB), podAt(2, sticks)}
		}, "evict web-2", LookAgain},
		"no partition, and all are stuck": {func(in *EvictionInput) {
			bare(in)
			in.Places.Pods = []workload.Place{podAt(0, sticks), podAt(1, sticks), podAt(2, sticks)}
		}, "evict web-2", LookAgain},
		"no partition, and all are stuck, all at once": {func(in *EvictionInput) {
			bare(in)
			in.Places.Ordered, in.Places.Pods = false, []workload.Place{podAt(0, sticks), podAt(1, sticks), podAt(2, sticks)}
		}, "evict web-2", LookAgain},
		"no partition, and it was never complete": {func(in *EvictionInput) {
			bare(in)
			in.Places.Kept, in.Places.Pods = versionA, []workload.Place{podAt(0, sticks), podAt(1), podAt(2)}
		}, "evict web-0", LookAgain},
		"created just after it was abandoned": {func(in *EvictionInput) {
			reason(in, func(r *QuarantineReason) { r.Time = rfc(2 * time.Minute) })
			created(-time.Second)(&in.Places.Pods[2])
		}, "evict web-2", LookAgain},
		"recreated": {func(in *EvictionInput) {
			reason(in, func(r *QuarantineReason) { r.Time = rfc(2 * time.Minute) })
			created(0)(&in.Places.Pods[2])
		}, "recreated web-2", LookAgain},
		"recreated, and no partition": {func(in *EvictionInput) {
			reason(in, func(r *QuarantineReason) { r.Time = rfc(2 * time.Minute) })
			bare(in)
			in.Places.Kept = versionA
			created(0)(&in.Places.Pods[2])
		}, "recreated web-2", LookAgain},
		"the first of two recreated": {func(in *EvictionInput) {
			reason(in, func(r *QuarantineReason) { r.Time = rfc(2 * time.Minute) })
			in.Places.Pods[1] = podAt(1, sticks, created(0))
		}, "recreated web-1", LookAgain},

		"too many":                    {func(in *EvictionInput) { in.Workload.Replicas = 2 }, idle, 0},
		"none of the set's":           {func(in *EvictionInput) { in.Places.Pods[2].Index = -1 }, idle, 0},
		"scaled up, pods not created": {func(in *EvictionInput) { in.Workload.Replicas = 5 }, "evict web-2", LookAgain},
		"scaled up, all at once": {
			func(in *EvictionInput) { in.Workload.Replicas, in.Places.Ordered = 5, false }, "the pod web number 4 to be created", LookAgain,
		},
		"another is terminating": {func(in *EvictionInput) { in.Places.Pods[0].Terminating = true }, "the pod web-0 to be gone", LookAgain},
		"one too many is terminating": {func(in *EvictionInput) {
			in.Places.Pods = append(in.Places.Pods, podAt(3, func(p *workload.Place) { p.Terminating = true }))
		}, "the pod web-3 to be gone", LookAgain},
		"another ended": {func(in *EvictionInput) { in.Places.Pods[0].Ended = true }, "the pod web-0 to be replaced", LookAgain},
		"one before it is not created": {
			func(in *EvictionInput) { in.Places.Pods = []workload.Place{podAt(0), podAt(2, sticks)} }, "the pod web number 2 to be created",
			LookAgain,
		},
		"a restored one not ready": {func(in *EvictionInput) { in.Places.Pods[0].Ready = false }, "the pod web-0 to be available", LookAgain},
		"a restored one too young": {func(in *EvictionInput) {
			in.Workload.MinReady, in.Places.Pods[0].ReadySince = time.Minute, testNow.Add(-time.Second)
		}, "the pod web-0 to be available", LookAgain},
		"another version before it": {func(in *EvictionInput) {
			in.Places.Pods[0].Current, in.Places.Pods[0].Version, in.Places.Pods[0].Ready = false, "cccc", false
		}, "block web-0", LookAgain},
		"another version that succeeded before it": {func(in *EvictionInput) {
			in.Places.Pods[0].Current, in.Places.Pods[0].Version, in.Places.Pods[0].Ready = false, "cccc", false
			in.Past.History = []workload.Revision{{Version: "cccc", Release: 1}}
		}, "the pod web-0 to be available", LookAgain},
		"another version before it, all at once": {func(in *EvictionInput) {
			in.Places.Ordered = false
			in.Places.Pods[0].Current, in.Places.Pods[0].Version, in.Places.Pods[0].Ready = false, "cccc", false
		}, "evict web-2", LookAgain},
		"a restored one after it not ready": {func(in *EvictionInput) {
			in.Places.Pods = []workload.Place{podAt(0), podAt(1, sticks), podAt(2, func(p *workload.Place) { p.Ready = false })}
		}, "evict web-1", LookAgain}, // it may need the one that is stuck
		"a restored one after it not ready, all at once": {func(in *EvictionInput) {
			in.Places.Ordered = false
			in.Places.Pods = []workload.Place{podAt(0), podAt(1, sticks), podAt(2, func(p *workload.Place) { p.Ready = false })}
		}, "the pod web-2 to be available", LookAgain},
		"a restored one not ready between two": {func(in *EvictionInput) {
			in.Workload.Replicas = 4
			in.Places.Pods = []workload.Place{podAt(0), podAt(1, sticks), podAt(2, func(p *workload.Place) { p.Ready = false }), podAt(3, sticks)}
		}, "evict web-1", LookAgain},
		"a pod of the abandoned version after it is ready": {func(in *EvictionInput) {
			in.Places.Pods = []workload.Place{
				podAt(0), podAt(1, sticks), podAt(2, func(p *workload.Place) { p.Version, p.Current = versionB, false }),
			}
		}, "evict web-1", LookAgain},

		"two are stuck: the last one": {func(in *EvictionInput) { in.Places.Pods[1] = podAt(1, sticks) }, "evict web-2", LookAgain},
		"two are stuck, in any order": {func(in *EvictionInput) {
			in.Places.Pods = []workload.Place{podAt(2, sticks), podAt(0), podAt(1, sticks)}
		}, "evict web-2", LookAgain},
		"the last of two is gone": {
			func(in *EvictionInput) { in.Places.Pods = []workload.Place{podAt(0), podAt(1, sticks)} }, "evict web-1", LookAgain,
		},
		"of two the last is too young": {func(in *EvictionInput) {
			in.Places.Pods[1] = podAt(1, sticks)
			in.Places.Pods[2].UnreadySince = testNow
		}, "evict web-1", LookAgain},
		"of two the first is too young": {func(in *EvictionInput) {
			in.Places.Pods[1] = podAt(1, sticks, func(p *workload.Place) { p.UnreadySince = testNow.Add(-20 * time.Second) })
		}, "a pod to be stuck for longer", 10 * time.Second},
		"all are stuck": {
			func(in *EvictionInput) { in.Places.Pods[0], in.Places.Pods[1] = podAt(0, sticks), podAt(1, sticks) }, "evict web-2", LookAgain,
		},
		"all were, and the first remains": {
			func(in *EvictionInput) { in.Places.Pods = []workload.Place{podAt(0, sticks)} }, "evict web-0", LookAgain,
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := stuckSet()
			test.change(&in)
			plan := DecideEviction(in)
			got := plan.Waits
			switch {
			case plan.Idle:
				got = idle
			case plan.NeedsLive:
				got = "needs live"
			case plan.Block != nil && plan.Block.Reason == v1alpha1.ReasonRecreated && !plan.Evict:
				got = "recreated " + plan.Stuck.Name
			case plan.Evict:
				got = "evict " + plan.Stuck.Name
			case plan.Stuck != nil:
				got = "block " + plan.Stuck.Name
			}
			if got != test.want || plan.RequeueAfter != test.in {
				t.Errorf("got %q and again in %s, want %q in %s", got, plan.RequeueAfter, test.want, test.in)
			}
		})
	}
}

// TestRecreated covers the messages if an eviction changes nothing.
func TestRecreated(t *testing.T) {
	const stuck = "pod web-0 of version " + versionB + ", which was abandoned (NeverStarted), is not ready, " +
		"and the statefulset does not replace it: "
	const patch = "patch statefulset/web"
	again := func(in *EvictionInput) {
		in.Places.Pods[0].Created, in.Places.Pods[0].UnreadySince = testNow, testNow
	}
	for name, test := range map[string]struct {
		change func(*EvictionInput)
		want   string
		pod    string
	}{
		"held": {func(in *EvictionInput) { in.Places.Kept, in.Workload.Pace.Partition = versionB, 3 },
			"its controller recreates it from an abandoned version while the rollout is held; " +
				"end the hold, and it is evicted (if a policy holds, see docs/tasks/hold-rollouts.md): " +
				"kubectl annotate --overwrite statefulset/web altershield.defense.antgroup.com/holding=disabled -n shop", ""},
		"no partition": {func(in *EvictionInput) {
			in.Places.Kept, in.Workload.Bare = versionB, true
			in.Places.Pods[1].Version, in.Places.Pods[1].Current = versionB, false
		}, "its controller recreates it from an abandoned version, because the update strategy has no partition; " +
			"set one, and the pod is evicted: kubectl patch statefulset/web -n shop", ""},
		"recreated, and no partition": {func(in *EvictionInput) {
			again(in)
			in.Workload.Bare = true
		}, "its controller recreated it from that version; set a partition in the update strategy: kubectl patch statefulset/web -n shop. " +
			"If the application tolerates it, delete the pod yourself: kubectl delete pod web-0 -n shop", "web-0"},
		"recreated": {again,
			"its controller recreated it from that version. " +
				"If the application tolerates it, delete the pod yourself: kubectl delete pod web-0 -n shop", "web-0"},
	} {
		t.Run(name, func(t *testing.T) {
			in := stuckSet()
			in.Now = testNow.Add(time.Minute)
			in.Workload.Words.GoOn = patch
			in.Places.Pods = []workload.Place{podAt(0, sticks), podAt(1), podAt(2)}
			test.change(&in)
			plan := DecideEviction(in)
			if plan.Block == nil || plan.Block.Message != stuck+test.want {
				t.Fatalf("block %+v\nwant %s", plan.Block, stuck+test.want)
			}
			if pod, _ := PodToDelete(plan.Block.Message); pod != test.pod {
				t.Errorf("it names the pod %q to delete, want %q", pod, test.pod)
			}
		})
	}
}

func TestNoteEviction(t *testing.T) {
	in := stuckSet()
	plan := DecideEviction(in)
	var status v1alpha1.ChangeWorkloadStatus
	note := func(at time.Time, block *EvictionBlock) string {
		changed, event := NoteEviction(&status, in.Workload, 1, at, block)
		said := fmt.Sprint(changed)
		if event != nil {
			said += " " + event.Reason
		}
		for _, c := range status.Conditions {
			said += fmt.Sprintf(" %s=%s/%s", c.Type, c.Status, c.Reason)
		}
		return said
	}
	refused := BlockedEviction(in.Workload, &plan, v1alpha1.ReasonDisruptionBudget,
		"the disruption budget web needs 3 healthy pods and has 2 currently")
	want := "pod web-2 of version " + versionB + ", which was abandoned (NeverStarted), is not ready, " +
		"and the statefulset does not replace it: " +
		"the disruption budget web needs 3 healthy pods and has 2 currently. " +
		"If the application tolerates it, delete the pod yourself: kubectl delete pod web-2 -n shop"
	if refused.Message != want {
		t.Errorf("it says %q", refused.Message)
	}
	if pod, ok := PodToDelete(refused.Message); pod != "web-2" || !ok {
		t.Errorf("it names the pod %q", pod)
	}
	quoted := BlockedEviction(in.Workload, &plan, v1alpha1.ReasonNotEvicted, "no; kubectl delete pod $(reboot) -n x").Message
	if pod, ok := PodToDelete(quoted); pod != "web-2" || !ok {
		t.Errorf("it names the pod %q", pod)
	}
	if pod, ok := PodToDelete("kubectl delete pod $(reboot) -n x"); ok {
		t.Errorf("it names the pod %q", pod)
	}
	if pod, ok := PodToDelete("the setting eviction is off"); ok {
		t.Errorf("it names the pod %q", pod)
	}
	if e := Evicted(in.Workload, &plan); e.Reason != v1alpha1.EventPodEvicted || !strings.Contains(e.Message, "pod web-2") ||
		!strings.Contains(e.Message, versionB) {
		t.Errorf("its event is %+v", e)
	}
	off := BlockedEviction(in.Workload, &plan, v1alpha1.ReasonNotEvicted, "the setting eviction is off")
	moved := &EvictionBlock{Reason: refused.Reason, Message: "another pod"}
	for i, step := range []struct {
		block *EvictionBlock
		want  string
	}{
		{nil, "false"},
		{refused, "true EvictionBlocked EvictionBlocked=True/DisruptionBudget"},
		{refused, "false EvictionBlocked=True/DisruptionBudget"},
		{moved, "true EvictionBlocked=True/DisruptionBudget"},
		{off, "true EvictionBlocked EvictionBlocked=True/NotEvicted"},
		{nil, "true EvictionBlocked=False/Recovered"},
		{nil, "false EvictionBlocked=False/Recovered"},
		{refused, "true EvictionBlocked EvictionBlocked=True/DisruptionBudget"},
	} {
		if got := note(testNow.Add(time.Duration(i)*time.Minute), step.block); got != step.want {
			t.Errorf("step %d: got %q, want %q", i, got, step.want)
		}
	}
	since := testNow.Add(7 * time.Minute)
	for refusedFor, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, 10 * time.Second: 10 * time.Second, time.Minute: time.Minute, time.Hour: 5 * time.Minute,
		-time.Hour: 10 * time.Second,
	} {
		if got := RetryEviction(&status, since.Add(refusedFor)); got != want {
			t.Errorf("refused for %s it is tried again in %s, want %s", refusedFor, got, want)
		}
	}
	if got := RetryEviction(&v1alpha1.ChangeWorkloadStatus{}, testNow); got != firstEvictionRetry {
		t.Errorf("refused for the first time it is tried again in %s", got)
	}
}
