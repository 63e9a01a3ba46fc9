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

package walkthrough

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// Story has the steps of one workload in a namespace.
type Story struct {
	Of        Workload
	Namespace string
	Steps     []Step
}

// App answers requests in place of the pods of a story.
type App struct {
	Address netip.AddrPort
	// Policy is the path of the policy that calls the pods.
	Policy string
	// Answer sets the HTTP status of its answers.
	Answer func(status int)
}

const (
	// shop is the namespace of hack/demo/shop.yaml, where policies verify the releases of a Deployment.
	shop = "shop"
	// staysUp is the check of the policy that the operator creates when it starts.
	staysUp = controlplane.ManagerNamespace + "/default/stays-up"
	// Policy and Check are the policy that calls the app, and its check.
	Policy, Check = "answers", "smoke"
	smoke         = shop + "/" + Policy + "/" + Check
	// crashes makes the pods of a release crash after 20 seconds, and lasts takes that back.
	crashes = `"labels":{"` + controlplane.BehaviorLabel + `":"` + controlplane.BehaviorCrashLoop + `"},` +
		`"annotations":{"` + controlplane.CrashAfterAnnotation + `":"20s"}`
	lasts = `"labels":{"` + controlplane.BehaviorLabel + `":null},"annotations":{"` + controlplane.CrashAfterAnnotation + `":null}`
	// holding and selfHealing are the settings of a workload with these names.
	holding     = v1alpha1.SettingAnnotationPrefix + "holding"
	selfHealing = v1alpha1.SettingAnnotationPrefix + "selfhealing"
)

var (
	web = Workload{kind: "Deployment", name: "web", pods: 3}
	// listHeld shows why rollouts are held.
	listHeld = kubectl("get changeworkloads -o", `custom-columns=STATUS:.status.status,HELD:.status.conditions[?(@.type=="Held")].message`)
)

// Policies is the story of a Deployment that policies verify. Without an app its probe is left out.
func Policies(app *App) Story {
	return Story{web, shop, []Step{
		{"Without a server: a release is Ready, and crashes later", []Act{
			kubectl("-n " + controlplane.ManagerNamespace + " wait --for=create defensepolicy/default --timeout=1m"),
			kubectl("-n " + controlplane.ManagerNamespace + " wait --for=condition=Accepted defensepolicy/default --timeout=1m"),
			{Note: "The operator has created this policy:"},
			kubectl("-n "+controlplane.ManagerNamespace+" get defensepolicies").prints("Enforce", "CHECKS"),
			kubectl("apply -f hack/demo/shop.yaml"),
			see("the release to succeed", (*scene).succeeded),
			{Note: "The next version starts and is Ready. All of its pods crash after 20 seconds. A label tells the simulated kubelets so:"},
			patchWeb(crashes, `"image":"web:2"`),
			see("the release to succeed", (*scene).succeeded),
			list.prints("Success"),
			see("the release to be suspended and the Deployment blocked", failed(staysUp, "container web is in CrashLoopBackOff")),
			see("the events", reports(v1alpha1.EventCheckFailed, v1alpha1.EventReleaseSuspended)),
			kubectl("get changeworkloads,changepods").prints("Suspend"),
			kubectl("get changepods -o wide").prints(staysUp),
			eventsOf("web", v1alpha1.EventCheckFailed).prints(staysUp, "container web is in CrashLoopBackOff"),
			eventsOf("web", v1alpha1.EventReleaseSuspended).prints(staysUp, "container web is in CrashLoopBackOff"),
		}},
		{"Without a server: the next release is blocked, and an override release passes", []Act{
			kubectl("set image deployment/web web=web:3").denied().prints(`denied the request: deployment web is suspended`),
			override("web"),
			patchWeb(lasts, `"image":"web:3"`),
			see("the release to succeed and the block to be lifted", (*scene).succeeded),
			list.prints("Success"),
		}},
		probe(app),
		{"Without a server: the same crash with self-healing, while the rollout is held: the release is rolled back", []Act{
			kubectl("annotate deployment web " + selfHealing + "=enabled " + holding + "=first"),
			patchWeb(crashes, `"image":"web:7"`),
			see("the first pod to be created, and the rollout to be held", (*scene).held),
			kubectl("get deployment web"),
			listHeld,
			see("the Deployment to be rolled back, and verified", (*scene).restored),
			see("the old pods to be there", kept(3)),
			see("the event", reports(v1alpha1.EventRolledBack)),
			list.prints("Rollback", "Success"),
			eventsOf("web", v1alpha1.EventRolledBack).prints(staysUp),
		}},
	}}
}

// probe returns the step of a policy whose check calls the pods: pods of the first release answer 200, pods of the next release 503.
func probe(app *App) Step {
	step := Step{Title: "Without a server: a probe of your own, which fails while the rollout is held"}
	if app == nil {
		step.Acts = []Act{{Note: "A probe calls pods by their IPs. " +
			"This machine has no address that could stand for the IP of a pod: the operator\n" +
			"calls neither loopback nor link-local addresses. So this step is left out; docs/reference/checks.md describes it."}}
		return step
	}
	answer := func(status int) Act {
		return Act{Do: func(context.Context) error { app.Answer(status); return nil }}
	}
	step.Acts = []Act{
		kubectl("apply -f " + app.Policy),
		kubectl("wait --for=condition=Accepted defensepolicy/" + Policy + " --timeout=1m"),
		kubectl("get defensepolicy "+Policy+" -o", `jsonpath={.spec.checks}{"\n"}`).prints("/healthz"),
		{Note: fmt.Sprintf("Simulated pods serve nothing. This program answers for them at %s, with 200 at first:", app.Address)},
		patchWeb(fmt.Sprintf(`"annotations":{%q:%q}`, controlplane.PodIPAnnotation, app.Address.Addr()),
			fmt.Sprintf(`"image":"web:4","ports":[{"containerPort":%d}]`, app.Address.Port())),
		see("the release to succeed", (*scene).succeeded),
		kubectl("get changepods").prints(v1alpha1.ChangePodMessagePostFinish),
		{Note: "The pods of the next version are Ready, and answer 503. Until the probe fails, all pods would be replaced, as before.\n" +
			"So this rollout is held until its first pods are verified:"},
		answer(503),
		kubectl("annotate deployment web " + holding + "=first"),
		kubectl("set image deployment/web web=web:5"),
		see("the first pod to be created, and the rollout to be held", (*scene).held),
		kubectl("get deployment web"),
		listHeld,
		see("the release to be suspended and the Deployment blocked", failed(smoke, "GET /healthz on port", "was answered 503")),
		see("the rollout to be halted", (*scene).stopped),
		see("the old pods to be there", kept(3)),
		see("the events", reports(v1alpha1.EventCheckFailed, v1alpha1.EventReleaseSuspended)),
		kubectl("get changeworkloads,changepods").prints("Suspend"),
		eventsOf("web", v1alpha1.EventReleaseSuspended).prints(smoke, "was answered 503"),
		{Note: "The fixed version answers 200. It is not held until the policy default has watched its first pod for 5 minutes:"},
		answer(200),
		kubectl("annotate deployment web " + holding + "-"),
		override("web"),
		kubectl("set image deployment/web web=web:6"),
		see("the release to succeed and the block to be lifted", (*scene).succeeded),
		list.prints("Success"),
	}
	return step
}

// patchWeb changes the metadata and the container of the pod template.
func patchWeb(metadata, container string) Act {
	return kubectl("patch deployment web -p",
		`{"spec":{"template":{"metadata":{`+metadata+`},"spec":{"containers":[{"name":"web",`+container+`}]}}}}`)
}

// override lets the next release of a Deployment pass the block.
func override(deployment string) Act {
	return kubectl("label deployment " + deployment + " " + v1alpha1.IgnoredSuspendLabel + "=true")
}

func eventsOf(workload, reason string) Act {
	return kubectl("get events --field-selector involvedObject.name=" + workload + ",reason=" + reason)
}
