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

// Package walkthrough has the stories of the operator as steps: what a user types, what the command has to print, what is to be seen then,
// and how long it may take. The demo, the end-to-end tests, the tests on real nodes and the tests of the documentation play them, each on
// a cluster of its own.
//
//   - story.go: steps and acts, and the walkthrough, a story of the Deployment in config/samples
//   - observed.go: the same in a namespace in observe mode
//   - kinds.go: the same for other kinds of workloads
//   - policies.go: releases that policies verify, without a server
//   - server.go: releases that AlterShield Server verifies
//   - player.go: plays steps
//   - scene.go, looks.go: what can be seen on a cluster
package walkthrough

import (
	"context"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	// FirstRelease is the release of the sample.
	FirstRelease = "sleep--x--c6c45d23c098bdf181853a85b60b5d74"
	// RepairRelease is the release of the repair.
	RepairRelease = "sleep--x--6a8ff823a5011291b0f02a1d83c2222d"
	// Denial is what a release of a blocked Deployment is answered.
	Denial = `admission webhook "vdeployment.kb.io" denied the request: deployment sleep is suspended`

	// patience bounds what takes seconds; a busy machine may take its time.
	patience = 2 * time.Minute
)

// What commands have for what is known only when they are typed.
const (
	// Namespace is where the story takes place.
	Namespace = "NAMESPACE"
	// FailedPod is the pod that fails.
	FailedPod = "POD"
	// badVersion is the version that is rolled back.
	badVersion = "BAD"
)

// Step is a turn of the story.
type Step struct {
	Title string
	Acts  []Act
}

// Act is a command, a sight, a note to those who read along, or something outside of the cluster.
type Act struct {
	// Kubectl are the arguments a user types. Upper-case words stand for what
	// is known only then.
	Kubectl []string
	// Prints is what the command has to print.
	Prints []string
	// Denied: the command has to fail.
	Denied bool
	// Calm: it needs a manager that lives. One that is killed may take an event
	// along, and while it is away a blocked Deployment does not change.
	Calm bool

	// Sight is what is waited for, for at most Within.
	Sight  *Sight
	Within time.Duration

	// Note is said of what comes next.
	Note string

	// Do does something outside of the cluster.
	Do func(ctx context.Context) error
}

// Sight is something that can be seen on the cluster.
type Sight struct {
	// What it is, as in "waiting for".
	What string
	look look
}

// kubectl is a command as it is typed.
func kubectl(command string, more ...string) Act {
	return Act{Kubectl: append(strings.Fields(command), more...)}
}

// Typed is the command as it is typed into a shell, with the words in the places
// of those that stand for them: old and new in turn.
func (a Act) Typed(words ...string) string {
	return strings.NewReplacer(words...).Replace(Typed(a.Kubectl))
}

// Typed is a kubectl command with these arguments as it is typed into a shell.
func Typed(args []string) string {
	var b strings.Builder
	b.WriteString("kubectl")
	for _, arg := range args {
		if strings.ContainsAny(arg, " {}\"$*\n") {
			arg = "'" + arg + "'"
		}
		b.WriteString(" " + arg)
	}
	return b.String()
}

func (a Act) prints(texts ...string) Act {
	a.Prints = texts
	return a
}

func (a Act) denied() Act {
	a.Denied = true
	return a
}

func (a Act) calm() Act {
	a.Calm = true
	return a
}

func see(what string, look look) Act {
	return Act{Sight: &Sight{What: what, look: look}, Within: patience}
}

func (a Act) within(limit time.Duration) Act {
	a.Within = limit
	return a
}

// Verdict is the command that fails a pod of the first batch by hand.
var Verdict = kubectl("patch changepod --subresource=status "+FirstRelease+"--x--1 --type merge -p",
	`{"status":{"podResults":[{"pod":"`+FailedPod+`","verdict":"unpass","message":"find error"}],"message":"PostFinish"}}`)

// another releases one more version.
var another = kubectl("patch deployment sleep -p", `{"spec":{"template":{"metadata":{"labels":{"test":"test"}}}}}`, "--type", "merge")

// list shows the releases.
var list = kubectl("get changeworkloads")

// Release is the first release of the sample, verified pod by pod.
var Release = Step{"1. A Deployment is released, and verified pod by pod", []Act{
	kubectl("label namespace " + Namespace + " " + v1alpha1.EnrolledLabel + "=" + v1alpha1.EnrolledValue),
	kubectl("apply -f config/samples/sleep.yaml"),
	see("the release and its 5 pods to be verified", (*scene).verified),
	list.prints("NAME", "STATUS", "CREATETIME", FirstRelease),
	kubectl("get changepods").prints("NAME", "STATUS", "MESSAGE", "CREATETIME", FirstRelease+"--x--5"),
}}

// Fail fails a pod of it: the release is suspended, the Deployment blocked.
var Fail = Step{"2. A pod fails its verification", []Act{
	Verdict,
	see("the release to be suspended and the Deployment blocked", (*scene).suspended),
	list.prints("Suspend"),
	kubectl("get changeworkload "+FirstRelease+" -o",
		`jsonpath={range .status.defenseCheckFailPods[*]}{.pod}: {.verdict}: {.message}{"\n"}{end}`).prints(FailedPod + ": unpass: find error"),
	kubectl("get deployment sleep -L " + v1alpha1.SuspendLabel),
	see("the event that tells of it", (*scene).told).calm(),
	kubectl("get events --field-selector involvedObject.kind=Deployment,reason=ReleaseSuspended").prints(FailedPod, "find error").calm(),
}}

// Blocked is a release that the block denies.
var Blocked = Step{"3. The next release is blocked", []Act{
	another.denied().prints(Denial),
	{Note: "scaling and everything but a new template still pass"},
	kubectl("annotate deployment sleep on-call=team-a --overwrite").calm(),
}}

// Repair is a release that overrides the block, and lifts it.
var Repair = Step{"4. A repair passes the block", []Act{
	kubectl("apply -f config/samples/sleep-repair.yaml"),
	see("both versions to be listed", (*scene).bothListed),
	list,
	see("the repair to succeed and the older version to go", (*scene).repaired),
	list.prints(RepairRelease, "Success"),
}}

// GoOn is the release that was denied.
var GoOn = Step{"5. Releases go on", []Act{
	another,
	see("it to succeed", (*scene).goesOn),
	list.prints("Success"),
}}

// NeverStarts is a release whose image cannot be pulled: it is rolled back after
// the two minutes that pods have to come up, and does not come back.
var NeverStarts = Step{"6. A release whose pods do not come up is rolled back", []Act{
	kubectl("apply -f config/samples/sleep-broken-image.yaml"),
	see("4 old pods to run and 3 new ones not to", (*scene).stuck),
	kubectl("get pods").prints("Pull"),
	see("the Deployment to be rolled back, and verified", (*scene).restored).within(patience + 2*time.Minute),
	list.prints("Rollback", "Success"),
	kubectl("get events --field-selector involvedObject.kind=Deployment,reason=RolledBack").prints("busybo").calm(),
	{Note: "the same again is denied, whoever applies it"},
	kubectl("apply -f config/samples/sleep-broken-image.yaml").denied().prints("version " + badVersion + " was rolled back at "),
}}

// Steps is the whole story.
func Steps() []Step { return []Step{Release, Fail, Blocked, Repair, GoOn, NeverStarts} }

// Sooner is a step with a shorter time for pods to come up.
func Sooner(step Step) Step {
	step.Acts = append([]Act{
		{Note: "pods have 2 minutes to come up; to see it sooner, this Deployment has its own setting"},
		kubectl("annotate deployment sleep --overwrite " + v1alpha1.SettingAnnotationPrefix + "rollback=5s"),
	}, step.Acts...)
	return step
}
