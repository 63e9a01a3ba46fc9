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

package observer

import (
	"cmp"
	"encoding/json"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// world is the state of the cluster at one resource version. Versions are applied in their order;
// the findings depend on nothing else.
type world struct {
	namespaces map[string]*namespace
	// declared has the names of the ChangeKinds whose status the operator wrote.
	declared    map[string]bool
	deployments map[types.UID]*workload
	replicaSets map[types.UID]replicaSetFacts
	// revisions has the owner of the pods of a revision, by the UID of the revision.
	revisions map[types.UID]types.UID
	pods      map[types.UID]*pod
	releases  map[types.UID]*release
	batches   map[types.UID]*batch
	// owned has the batches of each release.
	owned map[types.UID]map[types.UID]*batch
	// uids finds objects by kind, namespace and name.
	uids map[string]types.UID
	// delivered has the verdicts that were ever in etcd, onBatches the verdicts that were ever on a
	// batch.
	delivered map[check]string
	onBatches map[check]string
	holds     holds
	limits    limits
}

type pod struct {
	podFacts
	namespace, name string
	holdFacts
}

// event is a version of an object.
type event struct {
	kind            string
	rv              uint64
	seen            time.Time
	uid             types.UID
	namespace, name string
	// deleted: the object was removed.
	deleted bool
	// listed: the object is from a list; its earlier versions are unknown.
	listed bool
	// leaving: it was deleted, and the operator may delay its removal.
	leaving bool
	// object is the result of factsOf; nil if deleted.
	object any
}

// newEvent returns the event of a version of an object.
func newEvent(kind string, rv uint64, seen time.Time, o client.Object, deleted, listed bool) event {
	e := event{
		kind: kind, rv: rv, seen: seen, uid: o.GetUID(), namespace: o.GetNamespace(), name: o.GetName(), deleted: deleted, listed: listed,
	}
	if !deleted {
		e.leaving, e.object = isKept(o), factsOf(o)
	}
	return e
}

// limits has the settings, and the counts that are bounded.
type limits struct {
	// own is the operator's namespace.
	own string
	// settings are by namespace and name. changed is when a user last changed a setting.
	settings map[string]*v1alpha1.OpsConfigInfo
	changed  time.Time
	// keeps is the largest value that the setting history had, history the workload of each
	// version.
	keeps   int
	history map[types.UID]types.UID
	// leaving are the deleted objects that still exist.
	leaving map[types.UID]leaving
	// writes counts the operator's writes about a workload since another writer changed it.
	writes map[types.UID]int
	// rollbacks are the rollbacks without a request.
	rollbacks []rollback
}

// rollback is a rollback that no user requested.
type rollback struct {
	at        time.Time
	of        types.UID
	namespace string
}

const (
	// slack is how much equal times may differ: times in objects, and the operator's estimate of
	// the API server's clock, are in seconds.
	slack = 2 * time.Second
	// delay is how old the view of a controller of Kubernetes may be.
	delay = 10 * time.Second
	// startUp is how long the operator may take to act after its start.
	startUp = 20 * time.Second
	// leastAtMost is the shortest time after which the hold of a wave runs out.
	leastAtMost = time.Minute
	// conditionHeld is False for reasonVerified once a wave is verified, and the hold goes on or
	// ends.
	conditionHeld, reasonVerified = "Held", "Verified"
	// holdingSetting is the setting that asks for holds; untilEvery holds each wave.
	holdingSetting, untilEvery = "holding", "EveryBatch"
)

// leaving is a deleted object, and when its deletion was first seen.
type leaving struct {
	event
	since time.Time
}

type batch struct {
	*v1alpha1.ChangePod
	owner types.UID
	// applied are the failures that are in the results.
	applied []string
	failed  bool
}

// check is one check of an order entry; node is empty for the check of the order itself.
type check struct {
	order, node string
	stage       v1alpha1.CheckStage
}

type namespace struct {
	enrolled bool
	// ever: it was enrolled at some time.
	ever    bool
	changed time.Time
}

type release struct {
	*v1alpha1.ChangeWorkload
	owner types.UID
	// partial: its history began before the observer saw it.
	partial bool
	// since is the version at which the attempt began or, later, last left Suspend; entered is the
	// version at which it became Suspend.
	since, entered uint64
	// failing: a verdict fails it. lastFailing and lastClean are the last versions at which a
	// verdict did, and did not.
	failing                bool
	lastFailing, lastClean uint64
	// left counts the status writes since its workload is not defended.
	left int
}

type workload struct {
	*appsv1.Deployment
	template string
	// contents are the templates its versions were recorded with.
	contents map[string]string
	// out is when it was opted out; zero if it is not.
	out time.Time
	// tookBack counts the writes that removed the block since then; back is when it was opted in
	// again.
	tookBack int
	back     time.Time
}

// leftSince returns why a workload is not defended, and since when.
func (w *world) leftSince(d *workload) (why string, since time.Time) {
	if !d.out.IsZero() {
		why, since = "was opted out", d.out
	}
	if ns := w.namespaces[d.Namespace]; ns != nil && !ns.enrolled && (since.IsZero() || ns.changed.Before(since)) {
		why, since = "left with its namespace", ns.changed
	}
	return why, since
}

// workloadOf returns the workload of a request, and the release if the request is about one; nil if
// unknown or gone.
func (w *world) workloadOf(r *Request) (*workload, *release) {
	var owner types.UID
	var of *release
	find := func(kind string) types.UID { return w.uids[kind+"/"+r.Namespace+"/"+r.Name] }
	switch r.Resource {
	case "deployments", "statefulsets", "daemonsets":
		owner = find(workloadKinds()[r.Resource])
	case "pods":
		if p := w.pods[find(kindPod)]; p != nil {
			owner = w.replicaSets[p.owner].owner
		}
	case "changeworkloads":
		if of = w.releases[find(kindRelease)]; of != nil {
			owner = of.owner
		}
	case "changepods":
		if b := w.batches[find(kindBatch)]; b != nil {
			if of = w.releases[b.owner]; of != nil {
				owner = of.owner
			}
		}
	default:
		var sent struct{ Metadata metav1.ObjectMeta }
		if json.Unmarshal(r.body, &sent) == nil {
			owner = cmp.Or(ownerOf(&sent.Metadata), types.UID(sent.Metadata.Labels[v1alpha1.HistoryOfLabel]))
		}
	}
	return w.deployments[owner], of
}

const (
	// propagation is how long the API server, for its webhooks, and the operator may take to read a
	// change of enrolment.
	propagation = 5 * time.Second
	// readDelay is how long after a pod finished the operator may not know it. Times in objects are
	// in seconds.
	readDelay = 5 * time.Second
)

func (w *world) rememberRelease(o *v1alpha1.ChangeWorkload) {
	s := &o.Status
	verdicts := map[v1alpha1.CheckStage]*v1alpha1.CheckVerdict{v1alpha1.StagePre: s.OrderPreVerdict, v1alpha1.StagePost: s.OrderPostVerdict}
	for stage, v := range verdicts {
		w.rememberVerdict(s.OrderID, v, stage, nil)
		if v != nil {
			own := *v
			own.NodeID = ""
			w.rememberVerdict(s.OrderID, &own, stage, nil)
		}
	}
	for i := range s.UnclaimedVerdicts {
		w.rememberVerdict(s.OrderID, &s.UnclaimedVerdicts[i].CheckVerdict, s.UnclaimedVerdicts[i].Stage, nil)
	}
}

// rememberVerdict keeps the gravest verdict on a check that was ever stored.
func (w *world) rememberVerdict(order string, v *v1alpha1.CheckVerdict, stage v1alpha1.CheckStage, also map[check]string) {
	if v == nil || v.Delivered == "" {
		return
	}
	key := check{order, v.NodeID, stage}
	for _, memory := range []map[check]string{w.delivered, also} {
		if memory != nil && !fails(memory[key]) {
			memory[key] = v.Delivered
		}
	}
}
