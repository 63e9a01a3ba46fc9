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
	"github.com/traas-stack/altershield-operator/internal/servertime"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/routers"
	"github.com/traas-stack/altershield-operator/test/observer"
)

// Options of a world.
type Options struct {
	// Server: there is AlterShield Server.
	Server bool
	// ServerOptions are of its simulator.
	ServerOptions simulator.Options
	// Settings replace the defaults: enable and content by name.
	Settings map[string]v1alpha1.OpsConfigValue
	// Policies are there beside the default one, which they may replace.
	Policies []v1alpha1.DefensePolicy
	// Bare: there are no settings and no policies yet.
	Bare bool
	// Unenrolled: the namespace is not enrolled at the start.
	Unenrolled bool
	// Processes are how many managers decide at once, 1 by default. More than one
	// does so only while a lease is lost and nobody knows.
	Processes int
	// Seed chooses what happens next, at every request; zero is a fixed order.
	Seed uint64
	// Clocks are how far the clocks of the machines are ahead of the API server's, on which
	// one process after the other runs; by default some are minutes off.
	Clocks []time.Duration
	// Lag is how far the caches are behind, by kind.
	Lag map[string]time.Duration
	// Fault is what goes wrong.
	Fault Fault
	// Broken makes the wrapper of all writes of a world, which stands for a mistake
	// in the operator: it may carry a write out later, or not at all.
	Broken func() func(write string, carryOut func() error) error
	// Nodes are how many there are. With none, pods start at once; what becomes of
	// them on nodes, Images says, by image.
	Nodes  int
	Images map[string]Image
	// NodeRoom is for how many pods there is room on a node; without limit when 0.
	NodeRoom int
	// Kinds are the kinds of workloads that are defended; by default those that the
	// operator defends.
	Kinds *workload.Registry
	// Forgets: what happened is not kept, only how often, so that a world that goes
	// on for months does not grow. It has no faults: those count what is written.
	Forgets bool
	// Verbose keeps a log of all that happens.
	Verbose bool
}

// World is a cluster with an operator. What can be done to each part of it is in the file of that part.
type World struct {
	api       *api
	kinds     *workload.Registry
	hooks     map[schema.GroupKind]hooks
	cluster   *cluster
	server    *server
	processes []*Process
	// all are the processes there ever were.
	all []*Process
	// down: what died stays dead.
	down bool
	// unreached: the API server does not reach the webhooks.
	unreached bool
	// clocks are how far the machines are ahead.
	clocks  []time.Duration
	random  *rand.Rand
	fault   Fault
	broken  func(write string, carryOut func() error) error
	verbose bool
	forgets bool

	// writes and calls are those of the operator, since the story began; written how
	// often it wrote what, to all objects of a kind.
	writes, calls []string
	written       map[string]int
	// hit is what the fault was at.
	hit string

	// busySteps are the steps of the second that began at busySince, last the
	// newest of them once they are many.
	busySince time.Time
	busySteps int
	last      []string

	mu sync.Mutex
	// waiting are the goroutines that wait to be let on, running is the one that is.
	waiting []*task
	running string
	wake    chan struct{}
	events  []Event
	notes   []string
	// errors are those that the processes logged.
	errors []string
}

// Image is what becomes of the pods of an image, on the nodes of a world that has
// some. The zero value is on every node, is ready at once and runs for ever.
type Image struct {
	// Missing: no registry has it.
	Missing bool
	// Pull is how long a node takes to pull it; zero where every node has it.
	Pull time.Duration
	// Ready is how long a container of it runs before it is ready.
	Ready time.Duration
	// Straggler is how long that takes in the first pod that is made of it.
	Straggler time.Duration
	// Ends is how long it runs, for ever when it is zero: as an init container it has
	// done its work then; else it crashes, each time it is started.
	Ends time.Duration
}

// Fault is what goes wrong, once.
type Fault struct {
	Kind FaultKind
	// At is the number of the write, from 1.
	At int
	// OfCalls: it counts the calls to AlterShield Server.
	OfCalls bool
}

// Process is one manager of the operator. What it meets, and what meets it, has files of its own: client, queues, admission, schedule.
type Process struct {
	world  *World
	number int
	cache  *processCache
	client client.Client
	live   client.Reader
	// lag is how far the cache is behind, by kind.
	lag map[string]time.Duration

	ctx    context.Context
	cancel context.CancelFunc
	// dead is guarded by the world's lock.
	dead bool
	died time.Time
	// running are its goroutines.
	running   sync.WaitGroup
	runnables []manager.Runnable
	webhooks  map[string]http.Handler
	callbacks *routers.Server
	clock     *servertime.Clock
	// recorded are its events, guarded by the world's lock.
	recorded map[eventKey]recorded

	queuesMu sync.Mutex
	// showing: the handlers see a change; asked hands over what they asked for.
	showing bool
	asked   []func()
}

// task is a goroutine of a process that waits to be let on.
type task struct {
	// id tells one reconcile, or one callback, from the next; name says what it is
	// about.
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
	// OperatorNamespace is where the operator runs.
	OperatorNamespace = "altershieldoperator-system"
	// Operator is the user it runs as.
	Operator = "system:serviceaccount:" + OperatorNamespace + ":altershieldoperator-controller-manager"
	// Namespace is where stories happen; it is enrolled unless a story says
	// otherwise.
	Namespace = "shop"
	// User is who does what a story says.
	User = "jane"
)

// kubelets are nodes, with the scheduler, and what the kubelets make of pods.
type kubelets struct {
	images map[string]Image
	nodes  []*node
	// room is for how many pods there is on a node; no limit when it is 0.
	room int
	// registryGone: no image can be pulled.
	registryGone bool
	lives        map[types.UID]*life
	// made counts pods by image.
	made map[string]int
}

// refused is the condition of a ReplicaSet whose pods are refused.
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

// cluster is a model of what else runs: the deployment controller, the kubelets
// and garbage collection. It does what they do as far as the operator can tell,
// in the order of names. Each of those has a file.
type cluster struct {
	api *api
	// seen is the last entry of the history it acted on; next when it has to act
	// although nothing changed.
	seen int
	next time.Time
	pods int
	// collected is when garbage collection last removed something.
	collected time.Time
	// progress is when a rollout last came on.
	progress map[types.UID]time.Time
	// kubelets are there where the world has nodes. Else every pod starts at once, or
	// does what its image is called.
	kubelets *kubelets
	// told are the states of pods that a story chose, which stay as they are.
	told map[types.UID]corev1.PodStatus
	// bounded: there are no more pods than quota.
	bounded bool
	quota   int
}

// FaultKind is what goes wrong.
type FaultKind string

// What goes wrong at a write or, where said, at a call to AlterShield Server.
const (
	// NoFault: nothing does.
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
	// Conflicts: somebody else was faster.
	Conflicts FaultKind = "409 to"
	// Forbids and Rejects: a policy of somebody else refuses the write, once.
	Forbids FaultKind = "403 to"
	Rejects FaultKind = "422 to"
)

// eventKey is of the events that client-go makes one series of. The series is a patch, which the role of the
// operator forbids, and it keeps the message of the first event only.
type eventKey struct{ regarding, related, eventType, reason, action string }

// recorded is an event that client-go remembers.
type recorded struct {
	message string
	at      time.Time
}

// Event is what users are told.
type Event struct{ Name, Reason, Message string }

// hook is a webhook, as its configuration says.
type hook struct{ name, path string }

// life is what a kubelet knows of a pod.
type life struct {
	node            *node
	scheduled, seen time.Time
	// init and main are its containers, one after the other; most have no init.
	init, main *container
	// lost: its node is not heard of.
	lost bool
}

type node struct {
	name string
	// down is since when it is.
	down time.Time
	// cutOff: it reaches no registry.
	cutOff bool
	has    map[string]bool
}

// stamp is a time as an API server keeps it.
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

// container is one of a pod, and what it does.
type container struct {
	name, image string
	is          Image
	init        bool
	doing       doing
	// next is when it does something else.
	next time.Time
	// tries are the failed pulls, until is how long the next one waits.
	tries int
	until time.Time
	// started and ended are of its last run, backOffs how often it was backed off.
	started, ended time.Time
	restarts       int32
	backOffs       int
	last           *corev1.ContainerStateTerminated
}

// alive are the processes that run.
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

// Failf ends the story: it did not go as it should.
func (w *World) Failf(format string, args ...any) {
	panic(failure{fmt.Sprintf(format, args...)})
}

// failure is why a story did not go on; it ends the telling.
type failure struct{ why string }
