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

package admission

import (
	"math"
	"strings"
	"testing"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestMutateHalt: a manifest that is applied again leaves the halt of a StatefulSet or a DaemonSet. An override,
// another release and a value of the user's own resume it.
func TestMutateHalt(t *testing.T) {
	const own, stale, by = v1alpha1.IgnoredSuspendLabel, v1alpha1.OverrideStaleAnnotation, v1alpha1.HaltedAnnotation
	// set is a StatefulSet that was halted at partition 2, and daemon a DaemonSet.
	daemon := func() *admissionWrapper {
		w := makeBlocked().bothAnnotations(v1alpha1.HaltedAnnotation, "v1").paused(true, false)
		w.Old.Words, w.New.Words = workload.Words{HaltedBy: "sails"}, workload.Words{HaltedBy: "sails"}
		return w
	}
	set := func(to int32) *admissionWrapper {
		w := daemon().pacing(partitionAt(math.MaxInt32), partitionAt(to)).bothAnnotations(v1alpha1.HaltedFromAnnotation, "2")
		return w.paused(true, to == math.MaxInt32)
	}
	unknown := func(w *admissionWrapper) *admissionWrapper { w.New.Unknown = true; return w }
	deployment := daemon()
	deployment.Old.Words, deployment.New.Words = workload.Words{}, workload.Words{}
	for name, c := range map[string]struct {
		request *admissionWrapper
		// stays: the halt stays. used: the override is used up.
		stays, used bool
	}{
		"set, applied again":                          {set(2), true, false},
		"set, something else":                         {set(math.MaxInt32).annotation("a", "b"), true, false},
		"set, applied again with an override":         {set(2).label(own, "true"), false, true},
		"set, applied again, overridden since":        {set(2).both(own, "true"), false, true},
		"set, applied again, overridden before":       {set(2).both(own, "true").bothAnnotations(stale, "true"), true, false},
		"set, applied again with a wrong override":    {set(2).label(own, "yes"), true, false},
		"set, applied without annotations":            {set(2).lose(v1alpha1.HaltedAnnotation, v1alpha1.HaltedFromAnnotation), true, false},
		"set, another value":                          {set(0), false, false},
		"set, another value with an override":         {set(0).label(own, "true"), false, false},
		"set, OnDelete":                               {set(workload.NoPartition), false, false},
		"set, a strategy that is not known":           {unknown(set(workload.NoPartition)), false, false},
		"set, an override alone":                      {set(math.MaxInt32).label(own, "true"), true, false},
		"set, a release with an override":             {set(2).release().label(own, "true"), false, true},
		"set, a release that is denied":               {set(2).release(), true, false},
		"set, a release once the block is lifted":     {set(2).lose(v1alpha1.SuspendLabel).liftedBefore().release(), false, false},
		"set, applied again once the block is lifted": {set(2).lose(v1alpha1.SuspendLabel).liftedBefore(), true, false},
		"set, its owner's write":                      {set(2).ownedBy("prometheus k8s"), false, false},
		"set, the operator resumes":                   {set(2).own().lose(by, v1alpha1.HaltedFromAnnotation), false, false},
		"daemon, applied again":                       {daemon(), true, false},
		"daemon, applied again with an override":      {daemon().label(own, "true"), false, true},
		"daemon, a strategy that is not known":        {unknown(daemon()), false, false},
		"a Deployment, resumed":                       {deployment, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			changes := Mutate(c.request.Request)
			once := admitted(c.request.Request, changes)
			if again := Mutate(once); len(again) > 0 {
				t.Errorf("asked again, it changes %+v", again)
			}
			if said := once.New.Annotations[v1alpha1.HaltedAnnotation] != ""; once.New.Paused != c.stays || said != c.stays {
				t.Errorf("it is halted %t, and says %t, want %t", once.New.Paused, said, c.stays)
			}
			warning := c.request.PutBack(changes)
			warns := strings.HasPrefix(name, "set, applied") && c.stays || name == "daemon, applied again"
			if warns != strings.HasSuffix(warning, "/sleep -n default") {
				t.Errorf("it warns of %q", warning)
			}
			_, recorded := once.New.Annotations[v1alpha1.OverrideAnnotation]
			if recorded != c.used || c.used && once.New.Labels[own] != "" {
				t.Errorf("the override is recorded: %t, labels %v", recorded, once.New.Labels)
			}
		})
	}
}

// liftedBefore removes the block from the stored object.
func (w *admissionWrapper) liftedBefore() *admissionWrapper {
	delete(w.Old.Labels, v1alpha1.SuspendLabel)
	return w
}

// ownedBy sets the owner of both objects.
func (w *admissionWrapper) ownedBy(owner string) *admissionWrapper {
	w.Old.Owner, w.New.Owner = owner, owner
	return w
}

// TestHaltMarksStale: an override that is older than the halt does not resume it.
func TestHaltMarksStale(t *testing.T) {
	w := makeBlocked().both(v1alpha1.IgnoredSuspendLabel, "true").own().annotation(v1alpha1.HaltedAnnotation, "v1")
	once := admitted(w.Request, Mutate(w.Request))
	if once.New.Annotations[v1alpha1.OverrideStaleAnnotation] == "" {
		t.Errorf("it is not marked: %v", once.New.Annotations)
	}
}
