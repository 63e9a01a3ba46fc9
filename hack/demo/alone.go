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

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

const (
	// shop is the namespace of the chapter without a server, of hack/demo/shop.yaml.
	shop = "shop"
	// staysUp is the check of the policy that the operator makes at its start.
	staysUp = controlplane.ManagerNamespace + "/default/stays-up"
	// answers is the policy of the chapter, smoke its check.
	answers = "answers"
	smoke   = shop + "/" + answers + "/smoke"
	// lifetime is how long the pods of a release that crashes run before.
	lifetime = "20s"
	// crashes is what the kubelets are told of pods: how long they run.
	crashes = `"labels":{"` + controlplane.BehaviorLabel + `":"` + controlplane.BehaviorCrashLoop + `"},` +
		`"annotations":{"` + controlplane.CrashAfterAnnotation + `":"` + lifetime + `"}`
	// lasts takes it back.
	lasts = `"labels":{"` + controlplane.BehaviorLabel + `":null},"annotations":{"` + controlplane.CrashAfterAnnotation + `":null}`
	// selfHealing is the annotation by which a workload has the setting of that name.
	selfHealing = v1alpha1.SettingAnnotationPrefix + "selfhealing"
	// suspended is the reason of the event that tells of a release that failed.
	suspended = "ReleaseSuspended"
	// blocked is what a release of a blocked Deployment is answered.
	blocked = `admission webhook "vdeployment.kb.io" denied the request: deployment web is suspended`
)

// alone is the chapter that is told without a server.
type alone struct {
	*story
	// app answers for the pods; nil where this machine has no address for it.
	app *app
}

func (a *alone) play(ctx context.Context) error {
	return a.steps(ctx, []step{
		{"Without a server: a release is Ready, and crashes then", a.crash},
		{"Without a server: the next release is blocked, and a repair passes", a.repair},
		{"Without a server: a probe of your own, which fails while the rollout waits for it", a.probe},
		{"Without a server: the same crash with self-healing, while the rollout waits: the release is rolled back", a.healed},
	})
}

// crash is a release that succeeds, and crashes then.
func (a *alone) crash(ctx context.Context) error {
	if err := a.accepted(ctx, controlplane.ManagerNamespace, "default"); err != nil {
		return err
	}
	fmt.Print("\nThe operator has made one policy by itself:\n")
	if err := a.prints(ctx, []string{"Enforce", "CHECKS"}, "-n", controlplane.ManagerNamespace, "get", "defensepolicies"); err != nil {
		return err
	}
	if err := a.run(ctx, "apply", "-f", "hack/demo/shop.yaml"); err != nil {
		return err
	}
	if _, err := a.succeeds(ctx); err != nil {
		return err
	}
	fmt.Printf("\nThe next version starts and is Ready, and all of its pods crash after %s. The kubelets are played here,\nso they are told by a label:\n", lifetime)
	if err := a.run(ctx, "-n", shop, "patch", "deployment", "web", "-p", template(crashes, `"image":"web:2"`)); err != nil {
		return err
	}
	if err := a.watched(ctx); err != nil {
		return err
	}
	if err := a.run(ctx, "-n", shop, "get", "changeworkloads"); err != nil {
		return err
	}
	return a.fails(ctx, staysUp, "container web crashes again and again")
}

// watched waits until the release has succeeded, while its pods are watched.
func (a *alone) watched(ctx context.Context) error {
	release, err := a.succeeds(ctx)
	if err != nil {
		return err
	}
	return release.passed(staysUp, v1alpha1.CheckWatching)
}

// repair is what the failure leads to: the next release is denied, and passes as a
// repair.
func (a *alone) repair(ctx context.Context) error {
	out, err := a.kubectl(ctx, "-n", shop, "set", "image", "deployment/web", "web=web:3")
	if err == nil {
		return errors.New("the release was not denied")
	}
	if !strings.Contains(out, blocked) {
		return fmt.Errorf("denied, but not with the message %q", blocked)
	}
	return a.mend(ctx, "patch", "deployment", "web", "-p", template(lasts, `"image":"web:3"`))
}

// mend releases a repair.
func (a *alone) mend(ctx context.Context, release ...string) error {
	if err := a.run(ctx, "-n", shop, "label", "deployment", "web", v1alpha1.IgnoredSuspendLabel+"=true"); err != nil {
		return err
	}
	if err := a.run(ctx, append([]string{"-n", shop}, release...)...); err != nil {
		return err
	}
	if _, err := a.succeeds(ctx); err != nil {
		return err
	}
	return a.prints(ctx, []string{"Success"}, "-n", shop, "get", "changeworkloads")
}

// probe is a policy of the namespace whose check calls the pods, first of a release
// that answers well, then of one that does not.
func (a *alone) probe(ctx context.Context) error {
	if a.app == nil {
		fmt.Print(`
A probe calls pods by their IPs. This machine has no address that could stand for one: the operator calls
none of the loopback interface and of the link. So the demo leaves this out; docs/policies.md describes it.
`)
		return nil
	}
	path, err := a.app.policy(a.root)
	if err != nil {
		return err
	}
	if err := a.run(ctx, "apply", "-f", path); err != nil {
		return err
	}
	if err := a.accepted(ctx, shop, answers); err != nil {
		return err
	}
	fmt.Printf("\nPods that are played serve nothing. The demo answers for them, at %s, and well at first:\n", a.app.address)
	if err := a.run(ctx, "-n", shop, "patch", "deployment", "web", "-p", template(
		fmt.Sprintf(`"annotations":{%q:%q}`, controlplane.PodIPAnnotation, a.app.address.Addr()),
		fmt.Sprintf(`"image":"web:4","ports":[{"containerPort":%d}]`, a.app.address.Port()))); err != nil {
		return err
	}
	release, err := a.succeeds(ctx)
	if err != nil {
		return err
	}
	if err := release.passed(smoke, v1alpha1.CheckPassed); err != nil {
		return err
	}
	if err := a.prints(ctx, []string{v1alpha1.ChangePodMessagePostFinish}, "-n", shop, "get", "changepods"); err != nil {
		return err
	}
	return a.probeFails(ctx)
}

// probeFails is a release that does not answer well, while its rollout waits for the
// verdict on its first pod; and the repair, which does not wait.
func (a *alone) probeFails(ctx context.Context) error {
	fmt.Print(`
The pods of the next version are Ready, and answer 503. When the probe says so, all pods would be replaced,
as before. So this rollout waits until its first pods are verified:
`)
	a.app.status.Store(503)
	if err := a.run(ctx, "-n", shop, "annotate", "deployment", "web", holdFirst); err != nil {
		return err
	}
	before, err := a.releaseHeld(ctx, "set", "image", "deployment/web", "web=web:5")
	if err != nil {
		return err
	}
	if err := a.fails(ctx, smoke, "GET /healthz on port", "was answered 503"); err != nil {
		return err
	}
	now, err := a.web(ctx)
	if err != nil {
		return err
	}
	if err := a.kept(ctx, now, before, len(before)); err != nil {
		return err
	}
	fmt.Print("\nThe repair answers well. It need not wait until the policy default has watched its first pod for 5 minutes:\n")
	a.app.status.Store(200)
	if err := a.run(ctx, "-n", shop, "annotate", "deployment", "web", holding+"-"); err != nil {
		return err
	}
	return a.mend(ctx, "set", "image", "deployment/web", "web=web:6")
}

// releaseHeld releases something, waits until its first pod is Ready and the rollout
// waits, and shows that. It returns the pods from before.
func (a *alone) releaseHeld(ctx context.Context, release ...string) (before map[string]types.UID, err error) {
	good, err := a.web(ctx)
	if err != nil {
		return nil, err
	}
	if before, err = a.pods(ctx, good); err != nil {
		return nil, err
	}
	if err := a.run(ctx, append([]string{"-n", shop}, release...)...); err != nil {
		return nil, err
	}
	if err := a.waitFor(ctx, "the first pod to be Ready, and the rollout to wait", func(ctx context.Context) (string, bool, error) {
		now, err := a.see(ctx)
		if err != nil {
			return "", false, err
		}
		return now.progress(), now.waits() == nil, nil
	}); err != nil {
		return nil, err
	}
	if err := a.run(ctx, "-n", shop, "get", "deployment", "web"); err != nil {
		return nil, err
	}
	// That it waited was seen above. On a busy machine the verdict may be there by now.
	return before, a.run(ctx, "-n", shop, "get", "changeworkloads", "-o", heldColumns)
}

// healed is the release that crashes, while self-healing is on for its workload, and its
// rollout waits: only its first pod crashes.
func (a *alone) healed(ctx context.Context) error {
	good, err := a.web(ctx)
	if err != nil {
		return err
	}
	if err := a.run(ctx, "-n", shop, "annotate", "deployment", "web", selfHealing+"=enabled", holdFirst); err != nil {
		return err
	}
	before, err := a.releaseHeld(ctx, "patch", "deployment", "web", "-p", template(crashes, `"image":"web:7"`))
	if err != nil {
		return err
	}
	bad, err := a.see(ctx)
	if err != nil {
		return err
	}
	if err := a.waitFor(ctx, "the release to fail and to be rolled back, and what was restored to succeed", func(ctx context.Context) (string, bool, error) {
		now, err := a.see(ctx)
		if err != nil {
			return "", false, err
		}
		wrong := now.restored(bad.change.Name, good.Labels[v1alpha1.VersionLabel])
		return now.progress(), wrong == nil && now.succeeded() == nil, nil
	}); err != nil {
		return err
	}
	if err := a.kept(ctx, good, before, len(before)); err != nil {
		return err
	}
	if err := a.told(ctx, bad.change.Spec.Reversion, "RolledBack"); err != nil {
		return err
	}
	if err := a.prints(ctx, []string{"Rollback", "Success"}, "-n", shop, "get", "changeworkloads"); err != nil {
		return err
	}
	return a.prints(ctx, []string{staysUp}, "-n", shop, "get", "events", "--field-selector", "involvedObject.name=web,reason=RolledBack")
}

// succeeds waits until the current release has succeeded, and returns it.
func (a *alone) succeeds(ctx context.Context) (now *sight, err error) {
	err = a.waitFor(ctx, "the release to succeed", func(ctx context.Context) (string, bool, error) {
		if now, err = a.see(ctx); err != nil {
			return "", false, err
		}
		return now.progress(), now.succeeded() == nil, nil
	})
	return now, err
}

// fails waits until the current release is suspended, checks that it is for this
// check, and shows it.
func (a *alone) fails(ctx context.Context, check string, says ...string) error {
	var now *sight
	if err := a.waitFor(ctx, "the release to be suspended", func(ctx context.Context) (_ string, _ bool, err error) {
		if now, err = a.see(ctx); err != nil {
			return "", false, err
		}
		_, blocked := now.deployment.Labels[v1alpha1.SuspendLabel]
		return now.progress(), now.change.Status.Status == v1alpha1.ChangeWorkloadSuspend && blocked, nil
	}); err != nil {
		return err
	}
	if err := now.failed(check, says...); err != nil {
		return err
	}
	version := now.change.Spec.Reversion
	if err := a.told(ctx, version, v1alpha1.EventCheckFailed, suspended); err != nil {
		return err
	}
	if err := a.prints(ctx, []string{"Suspend"}, "-n", shop, "get", "changeworkloads,changepods"); err != nil {
		return err
	}
	if err := a.prints(ctx, []string{check}, "-n", shop, "get", "changepods", "-o", "wide"); err != nil {
		return err
	}
	for _, reason := range []string{v1alpha1.EventCheckFailed, suspended} {
		if err := a.prints(ctx, append(says, check, version), "-n", shop, "get", "events", "--field-selector", "involvedObject.name=web,reason="+reason); err != nil {
			return err
		}
	}
	return nil
}

// accepted waits until a policy is in force.
func (a *alone) accepted(ctx context.Context, namespace, name string) error {
	return a.waitFor(ctx, "the policy "+name+" to be accepted", func(ctx context.Context) (string, bool, error) {
		var p v1alpha1.DefensePolicy
		if err := client.IgnoreNotFound(a.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &p)); err != nil {
			return "", false, err
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
		if c == nil {
			return "not seen yet", false, nil
		}
		return c.Reason, c.Reason == v1alpha1.ReasonInForce && c.ObservedGeneration == p.Generation, nil
	})
}

// told waits for events that tell of a version: they are written after what they tell
// of.
func (a *alone) told(ctx context.Context, version string, reasons ...string) error {
	return a.waitFor(ctx, "the events that tell of it", func(ctx context.Context) (string, bool, error) {
		var events corev1.EventList
		if err := a.client.List(ctx, &events, client.InNamespace(shop)); err != nil {
			return "", false, err
		}
		missing := slices.DeleteFunc(slices.Clone(reasons), func(reason string) bool {
			return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
				return e.Reason == reason && e.InvolvedObject.Name == "web" && strings.Contains(e.Message, version)
			})
		})
		return fmt.Sprintf("%d of %d", len(reasons)-len(missing), len(reasons)), len(missing) == 0, nil
	})
}

// prints runs a command that has to print something.
func (a *alone) prints(ctx context.Context, texts []string, args ...string) error {
	out, err := a.kubectl(ctx, args...)
	if err != nil {
		return err
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			return fmt.Errorf("kubectl %s does not print %q", strings.Join(args, " "), text)
		}
	}
	return nil
}

func (a *alone) web(ctx context.Context) (*appsv1.Deployment, error) {
	var d appsv1.Deployment
	err := a.client.Get(ctx, types.NamespacedName{Namespace: shop, Name: "web"}, &d)
	return &d, err
}

// see looks at the Deployment, its releases, and the batches of the current one.
func (a *alone) see(ctx context.Context) (*sight, error) {
	d, err := a.web(ctx)
	if err != nil {
		return nil, err
	}
	s := &sight{deployment: *d}
	var changes v1alpha1.ChangeWorkloadList
	if err := a.client.List(ctx, &changes, client.InNamespace(shop)); err != nil {
		return nil, err
	}
	s.changes = changes.Items
	for i := range s.changes {
		if s.changes[i].Spec.Reversion == d.Labels[v1alpha1.VersionLabel] {
			s.change = s.changes[i]
		}
	}
	var batches v1alpha1.ChangePodList
	if err := a.client.List(ctx, &batches, client.InNamespace(shop)); err != nil {
		return nil, err
	}
	for i := range batches.Items {
		if batches.Items[i].Spec.ChangeWorkloadID == s.change.Name {
			s.batches = append(s.batches, batches.Items[i])
		}
	}
	return s, nil
}

// template is a patch of a pod template: of its metadata, and of its container.
func template(metadata, container string) string {
	return `{"spec":{"template":{"metadata":{` + metadata + `},"spec":{"containers":[{"name":"web",` + container + `}]}}}}`
}
