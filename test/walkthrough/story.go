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

// Package walkthrough has the stories of the operator as steps: commands that a user types, their output, the state of
// the cluster to wait for, and time limits. The demo, the end-to-end tests, the tests on real nodes and the tests of the documentation
// play the steps, each on a cluster of its own.
//
//   - story.go: steps and acts, and the walkthrough, a story of the Deployment in config/samples
//   - observed.go: the same in a namespace in observe mode
//   - kinds.go: the same for other kinds of workloads
//   - policies.go: releases that policies verify, without a server
//   - server.go: releases that AlterShield Server verifies
//   - declared.go: changes of an object of a declared kind
//   - player.go: plays steps
//   - scene.go, looks.go: states of a cluster
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
	// RepairRelease is the override release.
	RepairRelease = "sleep--x--6a8ff823a5011291b0f02a1d83c2222d"
	// Denial is the error of a release of a blocked Deployment.
	Denial = `admission webhook "vdeployment.kb.io" denied the request: deployment sleep is suspended`

	// patience is the time limit of a wait for something that takes seconds, on a busy machine as well.
	patience = 2 * time.Minute
)

// Placeholders in commands, for values that are known only when a command runs.
const (
	// Namespace is the namespace of the story.
	Namespace = "NAMESPACE"
	// FailedPod is the pod that fails.
	FailedPod = "POD"
	// badVersion is the version that is rolled back.
	badVersion = "BAD"
)

// Step is a part of the story.
type Step struct {
	Title string
	Acts  []Act
}

// Act is a command, a sight, a note to readers, or something outside of the cluster.
type Act struct {
	// Kubectl has the arguments that a user types, with placeholders in upper case.
	Kubectl []string
	// Prints has texts that the command must print.
	Prints []string
	// Denied reports whether the command must fail.
	Denied bool
	// Calm reports whether the act needs a manager that is not killed. A killed manager may lose an event, and a blocked Deployment does not
	// change while the manager is away.
	Calm bool

	// Sight is a state of the cluster to wait for, for at most Within.
	Sight  *Sight
	Within time.Duration

	// Note is a text for readers about the next acts.
	Note string

	// Do does something outside of the cluster.
	Do func(ctx context.Context) error
}

// Sight is a state of the cluster to wait for.
type Sight struct {
	// Name of the state, as in "waiting for".
	Name string
	look look
}

// kubectl returns the act of a command.
func kubectl(command string, more ...string) Act {
	return Act{Kubectl: append(strings.Fields(command), more...)}
}

// Typed returns the command as a user types it into a shell. words are placeholders and their values, in turn.
func (a Act) Typed(words ...string) string {
	return strings.NewReplacer(words...).Replace(Typed(a.Kubectl))
}

// Typed returns the kubectl command with these arguments as a user types it into a shell.
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

func see(name string, look look) Act {
	return Act{Sight: &Sight{Name: name, look: look}, Within: patience}
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

// Fail fails a pod of this release: the release is suspended and the Deployment is blocked.
var Fail = Step{"2. A pod fails its verification", []Act{
	Verdict,
	see("the release to be suspended and the Deployment blocked", (*scene).suspended),
	list.prints("Suspend"),
	kubectl("get changeworkload "+FirstRelease+" -o",
		`jsonpath={range .status.defenseCheckFailPods[*]}{.pod}: {.verdict}: {.message}{"\n"}{end}`).prints(FailedPod + ": unpass: find error"),
	kubectl("get deployment sleep -L " + v1alpha1.SuspendLabel),
	see("the event of the suspension", (*scene).reported).calm(),
	kubectl("get events --field-selector involvedObject.kind=Deployment,reason=ReleaseSuspended").prints(FailedPod, "find error").calm(),
}}

// Blocked is a release that the block denies.
var Blocked = Step{"3. The next release is blocked", []Act{
	another.denied().prints(Denial),
	{Note: "scaling and all other changes outside of the pod template still pass"},
	kubectl("annotate deployment sleep on-call=team-a --overwrite").calm(),
}}

// Repair is an override release: it passes the block, and lifts it.
var Repair = Step{"4. An override release passes the block", []Act{
	kubectl("apply -f config/samples/sleep-repair.yaml"),
	see("both versions to be listed", (*scene).bothListed),
	list,
	see("the override release to succeed and the older version to go", (*scene).repaired),
	list.prints(RepairRelease, "Success"),
}}

// GoOn is the release that was denied.
var GoOn = Step{"5. Releases go on", []Act{
	another,
	see("the release to succeed", (*scene).goesOn),
	list.prints("Success"),
}}

// NeverStarts is a release whose image cannot be pulled. It is rolled back after the two minutes that pods have to come up, and its version
// is denied then.
var NeverStarts = Step{"6. A release whose pods do not come up is rolled back", []Act{
	kubectl("apply -f config/samples/sleep-broken-image.yaml"),
	see("4 old pods to run and 3 new ones not to", (*scene).stuck),
	kubectl("get pods").prints("Pull"),
	see("the Deployment to be rolled back, and verified", (*scene).restored).within(patience + 2*time.Minute),
	list.prints("Rollback", "Success"),
	kubectl("get events --field-selector involvedObject.kind=Deployment,reason=RolledBack").prints("busybo").calm(),
	{Note: "the bad version is denied from now on, for all users"},
	kubectl("apply -f config/samples/sleep-broken-image.yaml").denied().prints("version " + badVersion + " was rolled back at "),
}}

// Steps is the whole story.
func Steps() []Step { return []Step{Release, Fail, Blocked, Repair, GoOn, NeverStarts} }

// Sooner returns a step in which pods have less time to come up.
func Sooner(step Step) Step {
	step.Acts = append([]Act{
		{Note: "pods have 2 minutes to come up; to see it sooner, this Deployment has its own setting"},
		kubectl("annotate deployment sleep --overwrite " + v1alpha1.SettingAnnotationPrefix + "rollback=5s"),
	}, step.Acts...)
	return step
}
