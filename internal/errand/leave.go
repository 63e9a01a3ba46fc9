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

package errand

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// pageSize is the number of workloads in one page of a list.
	pageSize = 500
	// maxListed is the number of workloads that are named in a message.
	maxListed = 50
	// cleanReads is the number of successive reads that must find no marked workload: the
	// operator may still write a decision that it made before observe mode was in force.
	cleanReads = 2
	// restsFor is the pause after a read, as a multiple of the time that the read took.
	restsFor = 5

	// ForceAnnotation on the manager's Deployment, with the value true, forces an uninstall.
	ForceAnnotation = "altershield.defense.antgroup.com/force-uninstall"

	// observeWithin is the time for turning observe mode on.
	observeWithin = 20 * time.Second
)

// leaving is an operator that is about to be uninstalled.
type leaving struct {
	client.Client
	namespace string
	// deployment is the name of the manager's Deployment.
	deployment string
	// owned are objects that the manager made for itself, deleted after its Deployment and its pods.
	owned []ownedObject
	kinds *workload.Registry
	out   io.Writer
	// force: the operator leaves although halted rollouts would continue to failed versions.
	force bool
	// generation is metadata.generation of the setting observe after this errand wrote it; 0 if the setting is missing.
	generation int64
}

// ownedObject is an object that the manager makes for itself in its namespace.
type ownedObject struct {
	gvk  schema.GroupVersionKind
	name string
}

func runLeave(ctx context.Context, args []string, env Environment) error {
	c := newCommon("leave", 2*time.Minute)
	l := &leaving{out: env.Out, kinds: workload.Defended()}
	c.flags.StringVar(&l.deployment, "deployment", "altershieldoperator-controller-manager", "`name` of the manager's Deployment")
	secret := c.flags.String("secret", "altershieldoperator-webhook-server-cert", "`name` of the Secret with the certificates of the webhooks")
	c.flags.BoolVar(&l.force, "force", false, "leave although halted rollouts go on to versions that failed")
	var err error
	if l.Client, err = c.parse(args, env); err != nil {
		return err
	}
	l.namespace = c.namespace
	l.owned = []ownedObject{
		{schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, *secret},
		{schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, "altershieldoperator-rollbacks"},
		{schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}, "altershield-operator"},
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return l.run(ctx)
}

// Refusal is the error of an errand that refuses to run. Another run refuses, too.
type Refusal struct{ reason string }

func (r Refusal) Error() string { return r.reason }

// ExitCode returns the exit code of the program. The Job of the Helm chart does not retry after it.
func (Refusal) ExitCode() int { return 3 }

// run prints each step that fails, and continues. It returns an error only if it refuses.
func (l *leaving) run(ctx context.Context) error {
	manager, err := l.manager(ctx)
	if err != nil {
		l.say("the manager's Deployment cannot be read: %v", err)
	}
	if manager != nil && !isUninstalledWithHooks(manager) {
		l.say("nothing is done: the Deployment %s was not installed by Helm or Argo CD, so this is no uninstall. "+
			"To apply the output of `helm template`, render it without this Job: --set uninstall.leave=false", manager.Name)
		return nil
	}
	if manager != nil {
		if err := l.announce(ctx, manager); err != nil {
			return err
		}
	}
	if manager == nil && err == nil {
		l.say("the operator is not there, so it takes nothing back")
	} else if err := l.retryObserve(ctx, manager); err != nil {
		l.say("the setting observe cannot be turned on, so the operator takes nothing back: %v", err)
	}
	left, err := l.wait(ctx)
	if err != nil {
		l.say("the workloads that the operator blocked, paused or held cannot be read: %v", err)
	}
	l.sayLeft(left, err == nil)
	if err := l.unlock(ctx); err != nil {
		l.say("the setting observe cannot be unlocked: %v", err)
	}
	if err := l.markLeft(ctx); err != nil {
		l.say("the end of this installation cannot be recorded, so the next one may verify the running versions as releases: %v", err)
	}
	l.sayHowToDefend()
	if manager != nil {
		// The wait may have used up the timeout.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		l.handOver(ctx, manager)
		if err := l.releaseKinds(ctx); err != nil {
			l.say("the finalizer %s of ChangeKinds cannot be removed, so remove it by hand before you delete them: %v",
				v1alpha1.GiveBackFinalizer, err)
		}
	}
	return nil
}

// announce lists the workloads that the operator is about to release. It refuses if a halted
// rollout would continue to a failed version.
func (l *leaving) announce(ctx context.Context, manager *appsv1.Deployment) error {
	found, err := l.loadMarked(ctx)
	if err != nil {
		l.say("the workloads that the operator blocks, pauses or holds cannot be read: %v", err)
		return nil
	}
	l.list(found, "the operator releases %d workloads:")
	halted := slices.DeleteFunc(slices.Clone(found), func(w marked) bool { return !slices.Contains(w.marks, paused) })
	runs := manager.Spec.Replicas == nil || *manager.Spec.Replicas > 0
	if len(halted) == 0 || !runs || l.force || manager.Annotations[ForceAnnotation] == "true" || l.hasBegun(ctx) {
		return nil
	}
	l.list(halted, "%d of them are halted, and would continue to a version that failed:")
	l.say("nothing was changed. Go back to a good version first: kubectl altershield rollback KIND/NAME -n NAMESPACE")
	l.say("or uninstall anyway: kubectl -n %s annotate deployment %s %s=true", l.namespace, manager.Name, ForceAnnotation)
	return Refusal{fmt.Sprintf("leave: %d halted rollouts would continue to a version that failed", len(halted))}
}

// isUninstalledWithHooks reports whether the installer of the manager runs hooks: Helm, or Argo CD,
// which marks its objects in one of three ways. Other installers apply the Job like any object, so
// it runs at the installation.
func isUninstalledWithHooks(d *appsv1.Deployment) bool {
	_, helm := d.Annotations["meta.helm.sh/release-name"]
	_, tracked := d.Annotations["argocd.argoproj.io/tracking-id"]
	_, instance := d.Labels["argocd.argoproj.io/instance"]
	_, application := d.Labels["app.kubernetes.io/instance"]
	return helm || tracked || instance || application
}

func (l *leaving) say(format string, args ...any) { _, _ = fmt.Fprintf(l.out, format+"\n", args...) }

// manager reads the manager's Deployment; nil if it does not exist.
func (l *leaving) manager(ctx context.Context) (*appsv1.Deployment, error) {
	var d appsv1.Deployment
	if err := l.Get(ctx, types.NamespacedName{Namespace: l.namespace, Name: l.deployment}, &d); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &d, nil
}

// retryObserve turns observe mode on, and retries for observeWithin: new rights may not be in
// force yet, and the API server may be busy.
func (l *leaving) retryObserve(ctx context.Context, manager *appsv1.Deployment) (err error) {
	ctx, cancel := context.WithTimeout(ctx, observeWithin)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		err = l.observe(ctx, manager)
		return err == nil, nil
	})
	return err
}

// observe turns observe mode on for all workloads, so that the operator takes back its blocks,
// pauses and holds. It locks the setting, so that no namespace and no workload overrides it.
func (l *leaving) observe(ctx context.Context, manager *appsv1.Deployment) error {
	object := &v1alpha1.OpsConfigInfo{}
	key := types.NamespacedName{Namespace: l.namespace, Name: settings.NameObserve}
	err := l.Get(ctx, key, object)
	if meta.IsNoMatchError(err) {
		return nil // the CRD is deleted
	}
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	missing := err != nil
	if !missing && object.Spec.Enable && object.Spec.Locked {
		l.generation = object.Generation
		return nil
	}
	before := object.DeepCopy()
	if !object.Spec.Enable && manager != nil {
		// If the CRDs are kept, the garbage collector deletes this setting, and the next
		// installation begins with the default.
		object.OwnerReferences = append(object.OwnerReferences, ownerReference(manager))
	}
	object.Spec = settings.Leave(object.Spec)
	if missing {
		object.Namespace, object.Name = key.Namespace, key.Name
		err = l.Create(ctx, object)
		if apierrors.IsNotFound(err) {
			return nil // the namespace or the CRD is deleted
		}
	} else {
		err = l.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	}
	if err != nil {
		return err
	}
	l.generation = object.Generation
	l.say("turned on observe mode for all workloads: the operator takes back its blocks, pauses and holds")
	return nil
}

// unlock restores a setting observe that was on before: nothing deletes it, and the next
// installation would find it locked.
func (l *leaving) unlock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	object := &v1alpha1.OpsConfigInfo{}
	err := l.Get(ctx, types.NamespacedName{Namespace: l.namespace, Name: settings.NameObserve}, object)
	if err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return client.IgnoreNotFound(err)
	}
	was, leaving := settings.BeforeLeaving(object.Spec)
	if !leaving || !was.Enable {
		return nil
	}
	before := object.DeepCopy()
	object.Spec = was
	return l.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// markLeft records on the setting blocking that this installation ends. If the CRDs are kept, the
// next start begins a new installation, and takes the running versions as baselines.
func (l *leaving) markLeft(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object := &v1alpha1.OpsConfigInfo{}
		err := l.Get(ctx, types.NamespacedName{Namespace: l.namespace, Name: settings.NameBlocking}, object)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		before := object.DeepCopy()
		v1alpha1.SetCondition("OpsConfigInfo", &object.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionInstalled, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonLeft,
		})
		return l.Status().Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

// sayHowToDefend prints how to turn the defense on again if the uninstall fails.
func (l *leaving) sayHowToDefend() {
	if l.generation == 0 {
		return
	}
	l.say("if the uninstall fails after this, and the operator stays, everything is in observe mode. " +
		"To defend again: kubectl altershield enroll --cluster --mode=enforce")
	l.say(`or: kubectl -n %s patch opsconfiginfo %s --type=merge `+
		`-p '{"metadata":{"ownerReferences":null},"spec":{"enable":false,"locked":false,"remark":""}}'`, l.namespace, settings.NameObserve)
}

func ownerReference(d *appsv1.Deployment) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID}
}

// wait waits until the operator has taken back all its changes, or cannot, or the context
// ends. It returns the workloads that were still marked at the last read.
func (l *leaving) wait(ctx context.Context) (left []marked, err error) {
	for clean, said, read := 0, -1, false; ; {
		begin := time.Now()
		found, works, failed := l.load(ctx)
		// To list all workloads of a large cluster is expensive.
		pause := max(pollInterval, restsFor*time.Since(begin))
		switch {
		case failed != nil && ctx.Err() != nil && read:
			return left, err
		case failed != nil:
			err, clean = failed, 0
		default:
			left, err, read = found, nil, true
			if len(left) > 0 && len(left) != said {
				said = len(left)
				l.say("%d workloads are blocked, paused or held by the operator", said)
			}
			if !works.runs {
				l.say("the operator takes nothing back: it does not run, or its settings are gone")
				return left, nil
			}
			if clean++; len(left) > 0 || !works.acknowledged {
				clean = 0
			}
		}
		if clean == cleanReads {
			return left, nil
		}
		select {
		case <-ctx.Done():
			return left, err
		case <-time.After(pause):
		}
	}
}

// load reads the state of the operator, and the workloads that it marked.
func (l *leaving) load(ctx context.Context) (left []marked, works working, err error) {
	if works, err = l.works(ctx); err != nil {
		return nil, works, err
	}
	left, err = l.loadMarked(ctx)
	return left, works, err
}

// working is the state of the operator.
type working struct {
	// runs: the manager's Deployment has replicas.
	runs bool
	// acknowledged: the setting observe is in force.
	acknowledged bool
}

func (l *leaving) works(ctx context.Context) (working, error) {
	d, err := l.manager(ctx)
	if err != nil {
		return working{}, err
	}
	if d == nil || d.Spec.Replicas != nil && *d.Spec.Replicas == 0 || l.generation == 0 {
		return working{}, nil
	}
	var object v1alpha1.OpsConfigInfo
	err = l.Get(ctx, types.NamespacedName{Namespace: l.namespace, Name: settings.NameObserve}, &object)
	if client.IgnoreNotFound(err) != nil {
		return working{}, err
	}
	return working{runs: true, acknowledged: err == nil && object.Status.ObservedGeneration >= l.generation}, nil
}

// marked is a workload that the operator blocked, paused or held.
type marked struct {
	kind string
	types.NamespacedName
	marks []mark
	// resume is the command that resumes the halted rollout, if the kind has one of its own.
	resume string
}

// mark is a change that the operator made to a workload.
type mark string

const (
	blocked mark = "blocked"
	paused  mark = "paused"
	held    mark = "held"
)

// remedies take a mark back by hand.
var remedies = []struct {
	mark   mark
	remedy string
}{
	{blocked, "without the operator this has no effect: remove the label " + v1alpha1.SuspendLabel},
	{paused, "run the command next to the workload, or kubectl rollout resume. It continues the rollout of the failed version; " +
		"to go back, run kubectl rollout undo after it"},
	{held, "the operator changed minReadySeconds and progressDeadlineSeconds, the partition of a StatefulSet, or the update strategy of " +
		"a DaemonSet. Set them to your values; the earlier values are in the annotation " + v1alpha1.HeldAnnotation},
}

// marks returns the marks that the operator made on a workload, without those of users.
func marks(o metav1.Object) (all []mark) {
	m := workload.MarksOf(o.GetLabels(), o.GetAnnotations())
	for i, is := range []bool{m.Blocked, m.Halted, m.Held} {
		if is {
			all = append(all, []mark{blocked, paused, held}[i])
		}
	}
	return all
}

// resumeOf returns the command that resumes a halted workload of a kind without spec.paused.
func (l *leaving) resumeOf(gvk schema.GroupVersionKind, o *metav1.PartialObjectMetadata, marks []mark) string {
	kind, native := l.kinds.Of(gvk.GroupKind())
	if !native {
		return ""
	}
	words := kind.Words(&workload.Workload{
		Namespace: o.Namespace, Name: o.Name, Annotations: o.Annotations, Stopping: workload.Stopping{Paused: true},
	})
	if words.HaltedBy == "" || !slices.Contains(marks, paused) {
		return ""
	}
	return ": " + wording.Kubectl(words.Resume, o.Namespace)
}

// loadMarked returns the marked workloads of all kinds. It reads only metadata.
func (l *leaving) loadMarked(ctx context.Context) ([]marked, error) {
	var found []marked
	var kinds []schema.GroupVersionKind
	for _, kind := range l.kinds.Kinds() {
		kinds = append(kinds, kind.GroupVersionKind())
	}
	declared, err := l.declaredKinds(ctx)
	if err != nil {
		return nil, err
	}
	for number, gvk := range slices.Concat(kinds, declared) {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		for next := ""; ; next = list.Continue {
			if err := l.List(ctx, list, client.Limit(pageSize), client.Continue(next)); err != nil {
				if meta.IsNoMatchError(err) {
					break // the kind is not served, so it has no workloads
				}
				if number >= len(kinds) && apierrors.IsForbidden(err) {
					l.say("%s of a ChangeKind are not listed: %v", gvk.Kind, err)
					break
				}
				return nil, fmt.Errorf("list %s: %w", gvk.Kind, err)
			}
			for i := range list.Items {
				o := &list.Items[i]
				if m := marks(o); len(m) > 0 && o.DeletionTimestamp == nil {
					found = append(found, marked{gvk.Kind, client.ObjectKeyFromObject(o), m, l.resumeOf(gvk, o, m)})
				}
			}
			if list.Continue == "" {
				break
			}
		}
	}
	return found, nil
}

// hasBegun reports whether an earlier run turned on observe mode and ended early: the operator
// releases the workloads already.
func (l *leaving) hasBegun(ctx context.Context) bool {
	var object v1alpha1.OpsConfigInfo
	if err := l.Get(ctx, types.NamespacedName{Namespace: l.namespace, Name: settings.NameObserve}, &object); err != nil {
		return false
	}
	_, leaving := settings.BeforeLeaving(object.Spec)
	return leaving
}

// list prints the number and the names of workloads.
func (l *leaving) list(all []marked, format string) {
	if len(all) > 0 {
		l.say(format, len(all))
	}
	for i, w := range all {
		if i == maxListed {
			l.say("  and %d more", len(all)-maxListed)
			break
		}
		l.say("  %s %s: %v%s", w.kind, w.NamespacedName, w.marks, w.resume)
	}
}

// sayLeft prints the workloads that are still marked, and the remedies.
func (l *leaving) sayLeft(left []marked, known bool) {
	if len(left) == 0 {
		if known {
			l.say("no workload is blocked, paused or held by the operator")
		}
		return
	}
	l.list(left, "left: %d workloads that the operator did not take back")
	for _, r := range remedies {
		if slices.ContainsFunc(left, func(w marked) bool { return slices.Contains(w.marks, r.mark) }) {
			l.say("%s: %s", r.mark, r.remedy)
		}
	}
}

// handOver sets owner references, so that the garbage collector deletes the owned objects after
// the Deployment and its pods: a manager that is still terminating recreates missing objects.
func (l *leaving) handOver(ctx context.Context, manager *appsv1.Deployment) {
	owners, err := l.owners(ctx, manager)
	if err != nil {
		l.say("the pods of the Deployment %s cannot be read, and may recreate objects that are deleted with it: %v", manager.Name, err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": owners}})
	if err != nil {
		l.say("%v", err)
		return
	}
	for _, o := range l.owned {
		object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: o.name}}
		object.SetGroupVersionKind(o.gvk)
		if err := l.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
			l.say("left: %s %s/%s: cannot set its owner, so it is not deleted with the Deployment: %v", o.gvk.Kind, l.namespace, o.name, err)
		}
	}
}

// owners returns references to the manager's Deployment and its pods; without pods if they cannot be listed.
func (l *leaving) owners(ctx context.Context, manager *appsv1.Deployment) ([]metav1.OwnerReference, error) {
	owners := []metav1.OwnerReference{ownerReference(manager)}
	selector, err := metav1.LabelSelectorAsSelector(manager.Spec.Selector)
	if err != nil {
		return owners, err
	}
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "PodList"})
	if err := l.List(ctx, pods, client.InNamespace(l.namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return owners, err
	}
	for i := range pods.Items {
		owners = append(owners, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pods.Items[i].Name, UID: pods.Items[i].UID})
	}
	return owners, nil
}
