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

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// Server has the functions of AlterShield Server that a story needs.
type Server interface {
	// FailNext fails the next check of pods of a workload (namespace/name) whose names match an expression, once.
	FailNext(workload, pod string)
	// Show waits until a line of the journal since FailNext matches until, and prints the lines that match lines.
	Show(ctx context.Context, lines, until string) error
}

var (
	// db is the StatefulSet of hack/demo/stock.yaml, in the namespace stock.
	db = Workload{kind: "StatefulSet", name: "db", pods: 3}
	// agent is the DaemonSet of hack/demo/logs.yaml, in the namespace logs, with a pod on each of three nodes.
	agent = Workload{kind: "DaemonSet", name: "agent", pods: 3}
)

const stock, logs = "stock", "logs"

// Verified is the whole walkthrough with AlterShield Server, and releases that the server fails.
func Verified(server Server) Story {
	show := func(lines, until string) Act {
		return Act{Do: func(ctx context.Context) error { return server.Show(ctx, lines, until) }}
	}
	failNext := Act{Do: func(context.Context) error { server.FailNext("default/sleep", "^sleep-"); return nil }}
	suspended := kubectl("get deployment sleep -L " + v1alpha1.SuspendLabel)
	const next = "set image deployment/sleep sleep=busybox:1.35"
	neverStarts := Sooner(NeverStarts)
	neverStarts.Acts = append(neverStarts.Acts,
		Act{Note: "The server hears how each order ended:"}, show("order ended", "order ended: ROLLBACK"))
	return Story{deployment, "default", []Step{
		Release, Fail, Blocked, Repair, GoOn, neverStarts,
		{"A failing verdict from AlterShield Server: the release is suspended in flight", []Act{
			{Note: "So far the server passed every pod, and the failing verdict was written by hand. The next release has a pod that breaks\n" +
				"a rule of the server, \"error rate\". Until the verdict comes, all pods would be replaced. So this rollout is held until\n" +
				"its first pods are verified:"},
			kubectl("annotate deployment sleep " + holding + "=first"),
			{Note: "A pod without a readiness probe has to run 10 seconds before it counts. The release brings a probe along:"},
			failNext,
			kubectl("patch deployment sleep -p", `{"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":"busybox:2",`+
				`"readinessProbe":{"exec":{"command":["true"]}}}]}}}}`),
			show(`: fail`, `callback .*: fail \(error rate: 5xx above 1 %\)$`),
			see("the release to be suspended and the Deployment blocked", failed("error rate: 5xx above 1 %")),
			see("the rollout to be halted", (*scene).stopped),
			see("4 of the 5 old pods to be there", kept(4)),
			see("the event", reports(v1alpha1.EventReleaseSuspended)),
			list.prints("Suspend"),
			suspended,
			eventsOf("sleep", v1alpha1.EventReleaseSuspended).prints("error rate: 5xx above 1 %"),
		}},
		{"A failing verdict from AlterShield Server: a block, and an override release", []Act{
			kubectl(next).denied().prints(Denial),
			{Note: "Marked as an override, the same release passes. It is not held until the policy default has watched its first pods for\n" +
				"5 minutes:"},
			kubectl("annotate deployment sleep " + holding + "-"),
			override("sleep"),
			kubectl(next),
			see("the release to succeed and the block to be lifted", (*scene).succeeded),
			list.prints("Success"),
			suspended,
			{Note: "The server received and answered, for both releases:"},
			show("default/sleep", `default/sleep .*order ended: SUCCESS`),
		}},
		{"The same with self-healing: the release is rolled back", []Act{
			kubectl("-n "+controlplane.ManagerNamespace+" patch opsconfiginfo selfhealing --type merge -p", `{"spec":{"enable":true}}`),
			kubectl("annotate deployment sleep " + holding + "=first"),
			failNext,
			kubectl("set image deployment/sleep sleep=busybox:1.36"),
			see("the Deployment to be rolled back, and verified", (*scene).restored),
			see("4 of the 5 old pods to be there", kept(4)),
			list.prints("Rollback", "Success"),
			kubectl("rollout history deployment/sleep"),
			show("order ended", "order ended: ROLLBACK"),
		}},
	}}
}

// Partition is the story of a StatefulSet whose second pod the server fails while the rollout is held at its partition, so that the
// third pod is never replaced.
func Partition(server Server) Story {
	pods := podsBy("CREATED:.metadata.creationTimestamp")
	partition := kubectl("get statefulset db -o", `custom-columns=NAME:.metadata.name,REPLICAS:.spec.replicas,`+
		`UPDATED:.status.updatedReplicas,PARTITION:.spec.updateStrategy.rollingUpdate.partition`)
	return Story{db, stock, []Step{
		{"A StatefulSet: its second pod fails while it is held at its partition, and it is brought back", []Act{
			kubectl("apply -f hack/demo/stock.yaml"),
			see("the StatefulSet to be released and verified", (*scene).succeeded),
			{Note: "Each pod is to be verified before the next one is replaced. A rollout is held by all checks, also by the policy default,\n" +
				"which watches pods for 5 minutes. Here 10 seconds are enough. Nothing is rolled back without a request:"},
			kubectl("-n "+controlplane.ManagerNamespace+" patch defensepolicy default --type json -p",
				`[{"op":"replace","path":"/spec/checks/0/podHealth/duration","value":"10s"}]`),
			kubectl("annotate statefulset db " + holding + "=every " + selfHealing + "=disabled"),
			{Do: func(context.Context) error { server.FailNext(stock+"/db", "^db-1$"); return nil }},
			kubectl("set image statefulset/db db=db:2"),
			see("the first pod to be created, and the rollout to be held", (*scene).held),
			partition,
			listHeld,
			see("the server to fail the second pod", failed("error rate: 5xx above 1 %")),
			see("the rollout to be halted", (*scene).stopped),
			kubectl("get changeworkloads,changepods").prints("Suspend"),
			kubectl("get changeworkloads -o",
				`jsonpath={range .items[*].status.defenseCheckFailPods[*]}{.pod}: {.message}{"\n"}{end}`).prints("db-1: "),
			pods.prints("db:1", "db:2"),
			partition.prints("2147483647"),
			kubectl("get statefulset db -L " + v1alpha1.SuspendLabel),
			{Note: "The pod db-0 still runs the version before. The others are brought back to it:"},
			kubectl("annotate statefulset db " + v1alpha1.RollbackToAnnotation + "=last-success"),
			see("the StatefulSet to be back, and verified", (*scene).restored),
			see("db-0 never to be replaced", kept(1)),
			list.prints("Rollback", "Success"),
			pods.prints("db:1"),
		}},
	}}
}

// Waves is the story of a DaemonSet that is held at its first wave, the pod of one node, which the server fails. The settings of
// [Partition] apply.
func Waves(server Server) Story {
	pods := podsBy("NODE:.spec.nodeName")
	const next = "set image daemonset/agent agent=agent:3"
	return Story{agent, logs, []Step{
		{"A DaemonSet: its first wave fails on one node, and the other nodes keep the version before", []Act{
			kubectl("apply -f hack/demo/logs.yaml"),
			see("the DaemonSet to be released and verified", (*scene).succeeded),
			{Note: "If the setting names DaemonSets, the operator replaces their pods itself, in waves of maxUnavailable, here one node:"},
			kubectl("annotate daemonset agent " + holding + "=first,daemonsets " + selfHealing + "=disabled"),
			{Do: func(context.Context) error { server.FailNext(logs+"/agent", "^agent-"); return nil }},
			kubectl("set image daemonset/agent agent=agent:2"),
			see("the server to fail the first pod", failed("error rate: 5xx above 1 %")),
			see("the rollout to be halted", (*scene).stopped),
			see("the pods of the other nodes to be there", kept(2)),
			pods.prints("agent:1", "agent:2"),
			see("the event", reports(v1alpha1.EventReleaseSuspended)),
			eventsOf("agent", v1alpha1.EventReleaseSuspended).prints("error rate: 5xx above 1 %"),
			{Note: "The DaemonSet is halted by its strategy. kubectl can no longer follow its rollout:"},
			kubectl("get daemonset agent -o", `custom-columns=NAME:.metadata.name,DESIRED:.status.desiredNumberScheduled,`+
				`UPDATED:.status.updatedNumberScheduled,STRATEGY:.spec.updateStrategy.type`).prints("OnDelete"),
			kubectl("rollout status daemonset/agent").denied().prints("rollout status is only available for RollingUpdate strategy type"),
		}},
		{"A DaemonSet: the next release is blocked, and an override release passes, which is held at its first node, too", []Act{
			kubectl(next).denied().prints("denied the request: daemonset agent is suspended"),
			kubectl("label daemonset agent " + v1alpha1.IgnoredSuspendLabel + "=true"),
			kubectl(next),
			see("the first pod to be created, and the rollout to be held", (*scene).held),
			listHeld,
			see("the release to succeed and the block to be lifted", (*scene).succeeded),
			pods.prints("agent:3"),
			list.prints("Success"),
		}},
	}}
}

// podsBy shows pods with their images and a further column.
func podsBy(column string) Act {
	return kubectl("get pods -o", "custom-columns=NAME:.metadata.name,IMAGE:.spec.containers[0].image,"+column)
}
