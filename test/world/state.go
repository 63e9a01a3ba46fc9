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

package world

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/servertime"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/routers"
	"github.com/traas-stack/altershield-operator/test/observer"
)

// Options configure a world.
type Options struct {
	// Server: the world has AlterShield Server.
	Server bool
	// ServerOptions are the options of its simulator.
	ServerOptions simulator.Options
	// Settings replace the defaults: enable and content by name.
	Settings map[string]v1alpha1.OpsConfigValue
	// Policies are created beside the default policy, which they may replace.
	Policies []v1alpha1.DefensePolicy
	// Endpoints are created in the operator's namespace, and Dial connects to them.
	Endpoints []v1alpha1.DefenseEndpoint
	Dial      endpoint.Dial
	// Bare: the world begins without settings and policies.
	Bare bool
	// Unenrolled: the namespace is not enrolled at the start.
	Unenrolled bool
	// Processes is the number of managers that decide at once, 1 by default. On a real cluster
	// there is more than one only while a lost lease is not noticed.
	Processes int
	// Seed chooses the order of steps; zero is a fixed order.
	Seed uint64
	// Clocks are how far the clocks of the machines are ahead of the API server's clock; processes
	// use them in turn. By default, some are minutes off.
	Clocks []time.Duration
	// Lag is how far the caches are behind, by kind.
	Lag map[string]time.Duration
	// Fault is the fault of the run.
	Fault Fault
	// Broken returns a wrapper of all writes, which stands for a bug in the operator: it may carry
	// a write out later, or not at all.
	Broken func() func(write string, carryOut func() error) error
	// Nodes is the number of nodes, with Images by name. Without nodes, pods start at once.
	Nodes  int
	Images map[string]Image
	// NodeRoom is the number of pods that fit on a node; no limit if 0.
	NodeRoom int
	// Kinds are the defended kinds of workloads; by default the kinds that the operator defends.
	Kinds *workload.Registry
	// Forgets: writes, calls and events are only counted, so that a world that runs for months does
	// not grow. Such a world has no faults, which count writes.
	Forgets bool
	// Verbose keeps a log of all that happens.
	Verbose bool
}

// World is a cluster with an operator. The acts on each of its parts are in the file of that part.
type World struct {
	api       *api
	kinds     *workload.Registry
	hooks     map[schema.GroupKind]hooks
	cluster   *cluster
	server    *server
	processes []*Process
	// all are all processes ever.
	all []*Process
	// down: dead processes are not replaced.
	down bool
	// unreached: the API server does not reach the webhooks.
	unreached bool
	// clocks are how far the clocks of the machines are ahead.
	clocks  []time.Duration
	random  *rand.Rand
	fault   Fault
	broken  func(write string, carryOut func() error) error
	verbose bool
	forgets bool
	dial    endpoint.Dial

	// writes and calls are the operator's since the story began; written counts the writes by verb
	// and kind.
	writes, calls []string
	written       map[string]int
	// past is the history that the next process lists; 0 if it lists all.
	past int
	// hit is the write or call of the fault.
	hit string

	// busySteps counts the steps of the second that began at busySince, last has the newest of them
	// if they are many.
	busySince time.Time
	busySteps int
	last      []string

	mu sync.Mutex
	// waiting are the tasks that wait, running is the ID of the task that runs.
	waiting []*task
	running string
	wake    chan struct{}
	events  []Event
	notes   []string
	// errors are the errors that the processes logged.
	errors []string
}

// Image says how the containers of an image run, in a world with nodes. The zero value is on every
// node, is ready at once and runs for ever.
type Image struct {
	// Missing: no registry has it.
	Missing bool
	// Pull is how long a node takes to pull it; zero if every node has it.
	Pull time.Duration
	// Ready is how long a container runs before it is ready.
	Ready time.Duration
	// Straggler is the same for the first pod of the image.
	Straggler time.Duration
	// Ends is how long a container runs; zero for ever. An init container then completes, any other
	// crashes, each time it is started.
	Ends time.Duration
}

// Fault is one fault of a run.
type Fault struct {
	Kind FaultKind
	// At is the number of the write, from 1.
	At int
	// OfCalls: At counts the calls to AlterShield Server.
	OfCalls bool
}

// Process is one manager of the operator. Its client, queues, admission and schedule have files of
// their own.
type Process struct {
	world  *World
	number int
	cache  *processCache
	client client.Client
	live   client.Reader
	// lag is how far the cache is behind, by kind.
	lag map[string]time.Duration
	// heldUntil is the time until which watches get no events.
	heldUntil time.Time

	ctx    context.Context
	cancel context.CancelFunc
	// dead is guarded by the world's lock.
	dead bool
	died time.Time
	// running are its goroutines.
	running   sync.WaitGroup
	runnables []manager.Runnable
	webhooks  *http.ServeMux
	callbacks *routers.Server
	clock     *servertime.Clock
	// recorded are its events, guarded by the world's lock.
	recorded map[eventKey]recorded

	queuesMu sync.Mutex
	// showing: handlers handle a change; asked adds their requests afterwards.
	showing bool
	asked   []func()
}

// task is a goroutine of a process that waits to be resumed.
type task struct {
	// id identifies one reconcile or callback, name its controller and object.
	id, name string
	process  *Process
	resume   chan error
}

// server is AlterShield Server, without sockets.
type server struct {
	*simulator.Simulator
	world *World

	mu        sync.Mutex
	callbacks int
	delivered []observer.Delivered
}

// hooks are the webhooks of one kind of workload.
type hooks struct{ mutate, block, quarantine, policy hook }

const (
	// OperatorNamespace is the namespace of the operator.
	OperatorNamespace = "altershieldoperator-system"
	// Operator is the user of the operator.
	Operator = "system:serviceaccount:" + OperatorNamespace + ":altershieldoperator-controller-manager"
	// Namespace is the namespace of stories; it is enrolled by default.
	Namespace = "shop"
	// User is the user of stories.
	User = "jane"
)

// kubelets has the nodes, the scheduler, and the kubelets' state of pods.
type kubelets struct {
	images map[string]Image
	nodes  []*node
	// room is the number of pods that fit on a node; no limit if 0.
	room int
	// registryGone: no image can be pulled.
	registryGone bool
	lives        map[types.UID]*life
	// made counts pods by image.
	made map[string]int
}

// refused returns the condition of a ReplicaSet whose pods are refused.
func refused(before []appsv1.ReplicaSetCondition, why string) []appsv1.ReplicaSetCondition {
	if why == "" {
		return nil
	}
	if len(before) > 0 {
		return before
	}
	return []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate",
		Message: why, LastTransitionTime: stamp(time.Now())}}
}

// cluster is a model of the Deployment controller, the kubelets, garbage collection and other
// controllers, as far as the operator can notice. They act in the order of names. Each has a file.
type cluster struct {
	api *api
	// seen is the last entry of the history that it acted on; next is when it has to act without a
	// change.
	seen int
	next time.Time
	pods int
	// collected is when garbage collection last removed something.
	collected time.Time
	// progress is when a rollout last made progress.
	progress map[types.UID]time.Time
	// kubelets is nil in a world without nodes: every pod then starts at once, or as the name of
	// its image says.
	kubelets *kubelets
	// chosen has the status of pods that a story chose.
	chosen map[types.UID]corev1.PodStatus
	// bounded: there are at most quota pods.
	bounded bool
	quota   int
}

// FaultKind is the kind of a fault.
type FaultKind string

// Kinds of faults at a write or, if mentioned, at a call to AlterShield Server.
const (
	// NoFault: there is no fault.
	NoFault FaultKind = ""
	// DiesBefore: the process dies, and the write is not carried out.
	DiesBefore FaultKind = "dies before"
	// DiesAfter: the process dies, and the write was carried out. Also at a call.
	DiesAfter FaultKind = "dies after"
	// AnswerLost: the write is carried out, and its answer does not arrive. Also at
	// a call.
	AnswerLost FaultKind = "the answer is lost of"
	// Repeated: the write is carried out twice, and the second answer counts.
	Repeated FaultKind = "repeated is"
	// Fails500 and the others: the write is not carried out, with that answer.
	Fails500 FaultKind = "500 to"
	Fails429 FaultKind = "429 to"
	Fails504 FaultKind = "504 to"
	// Conflicts: another writer was faster.
	Conflicts FaultKind = "409 to"
	Fails503  FaultKind = "503 to"
	// Forbids and Rejects: a policy of the cluster refuses the write, once.
	Forbids FaultKind = "403 to"
	Rejects FaultKind = "422 to"
	// ListsPast: the process dies, and the write was carried out. The next process lists objects as they were before the write, and
	// its watches begin after heldFor.
	ListsPast FaultKind = "lists the past after"
	// WatchesHeld: the process gets no events of watches for heldFor.
	WatchesHeld FaultKind = "watches are held after"
	// WatchesRepeat: the process gets all objects again, as after a watch that broke.
	WatchesRepeat FaultKind = "watches repeat after"
)

// eventKey identifies the events that client-go makes one series of. The series is a patch, which
// the role of the operator forbids, and it keeps only the message of the first event.
type eventKey struct{ regarding, related, eventType, reason, action string }

// recorded is an event that client-go remembers.
type recorded struct {
	message string
	at      time.Time
}

// Event is an event of the operator.
type Event struct{ Name, Reason, Message string }

// hook is a webhook of a configuration.
type hook struct{ name, path string }

// life is the state of a pod on a node.
type life struct {
	node            *node
	scheduled, seen time.Time
	// init and main are its containers, one after the other; most have no init.
	init, main *container
	// lost: its node is unreachable.
	lost bool
}

type node struct {
	name string
	// down is when the node stopped; zero if it runs.
	down time.Time
	// cutOff: the node reaches no registry.
	cutOff bool
	has    map[string]bool
}

// stamp returns a time as an API server stores it.
func stamp(at time.Time) metav1.Time { return metav1.NewTime(at).Rfc3339Copy() }

// note keeps a line of the log.
func (w *World) note(format string, args ...any) {
	if !w.verbose {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// container is a container of a pod, and its state.
type container struct {
	name, image string
	is          Image
	init        bool
	doing       doing
	// next is the time of its next step.
	next time.Time
	// tries counts the failed pulls, until is the time of the next pull.
	tries int
	until time.Time
	// started and ended are the times of its last run, backOffs counts its back-offs.
	started, ended time.Time
	restarts       int32
	backOffs       int
	last           *corev1.ContainerStateTerminated
}

// alive returns the running processes.
func (w *World) alive() []*Process {
	var alive []*Process
	for _, p := range w.processes {
		if !p.dead {
			alive = append(alive, p)
		}
	}
	return alive
}

type doing int

// Failf fails the story and ends it.
func (w *World) Failf(format string, args ...any) {
	panic(failure{fmt.Sprintf(format, args...)})
}

// failure is why a story was ended.
type failure struct{ why string }
