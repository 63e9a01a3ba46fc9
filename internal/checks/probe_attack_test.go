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

package checks

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// dialled records the addresses that a guard allowed. The guard is the real one; it also
// allows the pods of these tests, which are on this machine.
type dialled struct {
	mu sync.Mutex
	to []string
}

const podIP, apiServer = "127.0.0.1", "10.0.0.1"

func (d *dialled) guard() Guard {
	as := NewGuard("https://" + apiServer)
	return func(ctx context.Context, network, address string, c syscall.RawConn) error {
		if !strings.HasPrefix(address, podIP+":") {
			if err := as(ctx, network, address, c); err != nil {
				return err
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.to = append(d.to, address)
		return nil
	}
}

// change changes the pod of the batch at the API server.
func (p *probed) change(with func(*corev1.Pod)) {
	p.Helper()
	var pod corev1.Pod
	if err := p.live.Get(p.Context(), types.NamespacedName{Namespace: "ns", Name: "a"}, &pod); err != nil {
		p.Fatal(err)
	}
	with(&pod)
	status := pod.Status
	if err := p.live.Update(p.Context(), &pod); err != nil {
		p.Fatal(err)
	}
	pod.Status = status
	if err := p.live.Status().Update(p.Context(), &pod); err != nil {
		p.Fatal(err)
	}
}

// at gives the pod an IP.
func at(ip string) func(*probed) {
	return func(p *probed) { p.change(func(pod *corev1.Pod) { pod.Status.PodIP = ip }) }
}

// service creates a good Service for the pods, with one change, and has the check probe it.
func service(with func(*corev1.Service)) func(*probed) {
	return func(p *probed) {
		p.Helper()
		check := p.s.Policies[0].Spec.Checks[0].Probe
		check.Target, check.Service = v1alpha1.ProbeService, "web"
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: podIP, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: check.HTTP.Port}},
		}}
		with(s)
		if err := p.live.Create(p.Context(), s); err != nil {
			p.Fatal(err)
		}
	}
}

func both(a, b func(*probed)) func(*probed) { return func(p *probed) { a(p); b(p) } }

func unreadyPod(p *probed) { p.change(func(pod *corev1.Pod) { pod.Status.Conditions = nil }) }

// TestProbeAttacks: no policy, pod or Service can make the operator dial anything except the
// pods of the batch, or pods of the Service, at ports that they declare.
func TestProbeAttacks(t *testing.T) {
	other, otherSeen := serve(t, func(http.ResponseWriter, *http.Request) {})
	answer := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(secret)) }
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		change  func(*probed)
		phase   v1alpha1.CheckPhase
		reason  string
		message string
		// calls of the listener of the pod, at most.
		calls int
	}{
		"no attack": {change: func(*probed) {}, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, calls: 3},
		"a port that is not declared": {
			change:  func(p *probed) { p.change(func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports[0].ContainerPort = 1 }) },
			message: "none of its containers declares port",
		},
		"the network of the node": {
			change: func(p *probed) { p.change(func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }) }, message: "in the network of its node",
		},
		"an IP of the node": {
			change:  func(p *probed) { p.change(func(pod *corev1.Pod) { pod.Status.HostIP = "::ffff:" + podIP }) },
			message: "in the network of its node",
		},
		"loopback":               {change: at("127.0.0.2"), message: "probes may not call its IP"},
		"loopback, of IPv6":      {change: at("::1"), message: "probes may not call its IP"},
		"loopback, mapped":       {change: at("::ffff:127.0.0.2"), message: "probes may not call its IP"},
		"any address":            {change: at("0.0.0.0"), message: "probes may not call its IP"},
		"link-local":             {change: at("169.254.169.254"), message: "probes may not call its IP"},
		"link-local, of IPv6":    {change: at("fe80::1"), message: "probes may not call its IP"},
		"the API server":         {change: at(apiServer), message: "probes may not call its IP"},
		"the API server, mapped": {change: at("::ffff:" + apiServer), message: "probes may not call its IP"},
		"credentials of a cloud": {change: at("fd00:ec2::23"), message: "probes may not call its IP"},
		"a name":                 {change: at("example.com"), message: "it has no IP"},
		"a redirect": {
			handler: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) }, change: func(*probed) {},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, calls: 3,
		},
		"a redirect to the API server": {
			handler: func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "https://"+apiServer, http.StatusPermanentRedirect)
			},
			change: func(p *probed) { p.s.Policies[0].Spec.Checks[0].Probe.HTTP.Expect = "200" },
			phase:  v1alpha1.CheckFailed, reason: "HTTP308", message: "answered 308, and not 200", calls: 3,
		},
		"100 MB": {handler: func(w http.ResponseWriter, r *http.Request) {
			endless(w, r, func() { w.Header().Set("Content-Length", strconv.Itoa(100<<20)) }, make([]byte, 64<<10), 0)
		}, change: func(*probed) {}, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, calls: 3},
		"one byte a minute": {
			handler: func(w http.ResponseWriter, r *http.Request) { endless(w, r, func() {}, []byte("x"), time.Minute) },
			change: func(p *probed) {
				p.s.Policies[0].Spec.Checks[0].Timeout = &metav1.Duration{Duration: 100 * time.Millisecond}
			},
			phase: v1alpha1.CheckFailed, reason: "Timeout", message: "was not answered within the timeout", calls: 3,
		},
		"a Service": {change: service(func(*corev1.Service) {}), phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, calls: 3},
		"a Service that answers badly": {
			handler: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusServiceUnavailable) },
			change:  service(func(*corev1.Service) {}),
			phase:   v1alpha1.CheckFailed, reason: "HTTP503", message: "Service web: GET / on port ", calls: 3,
		},
		"a Service that is a name": {change: service(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		}), message: "of type ExternalName"},
		"a Service without a selector": {
			change: service(func(s *corev1.Service) { s.Spec.Selector = nil }), message: "it has no selector, and may lead anywhere",
		},
		"a headless Service": {
			change: service(func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }), message: "or probe with target Pods",
		},
		"a port that a Service has not": {change: service(func(s *corev1.Service) { s.Spec.Ports[0].Port++ }), message: "it has no TCP port"},
		"a port that a Service has else": {
			change: service(func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }), message: "it has no TCP port",
		},
		"a Service of another namespace": {
			change: service(func(s *corev1.Service) { s.Namespace = "other" }), message: "there is no such Service in namespace ns",
		},
		"a Service of the API server": {change: both(at(apiServer), service(func(*corev1.Service) {})), message: "probes may not call its IP"},
		"a Service with another IP": {
			change: service(func(s *corev1.Service) { s.Spec.ClusterIP = apiServer }),
			phase:  v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, calls: 3,
		},
		"a Service of a node": {
			change:  both(func(p *probed) { p.change(func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }) }, service(func(*corev1.Service) {})),
			message: "pod a: it is in the network of its node, whose ports are not called",
		},
		"a Service of a name": {
			change: both(at("example.com"), service(func(*corev1.Service) {})), message: "pod a: it has no IP",
		},
		"a Service that leads to another port": {
			change:  service(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(22) }),
			message: "pod a: none of its containers declares port 22",
		},
		"a Service that leads to a named port": {change: service(func(s *corev1.Service) {
			s.Spec.Ports[0].TargetPort = intstr.FromString("web")
		}), phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, calls: 3},
		"a Service that leads to no named port": {change: service(func(s *corev1.Service) {
			s.Spec.Ports[0].TargetPort = intstr.FromString("other")
		}), message: "none of its containers declares port 0"},
		"a Service of other pods": {
			change: service(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "other"} }),
			phase:  v1alpha1.CheckFailed, reason: "NoBackend", message: "no pod that it selects is Ready",
		},
		"a Service of pods that are not Ready": {
			change: both(unreadyPod, service(func(*corev1.Service) {})),
			phase:  v1alpha1.CheckFailed, reason: "NoBackend", message: "no pod that it selects is Ready",
		},
		"a Service that publishes pods that are not Ready": {
			change: both(unreadyPod, service(func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true })),
			phase:  v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, calls: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			handler := test.handler
			if handler == nil {
				handler = answer
			}
			server, seen := serve(t, handler)
			port := portOn(t, server)
			p, log := newProbed(t, port, "a"), &dialled{}
			p.checks.probe.caller.guard = log.guard()
			test.change(p)
			p.run(time.Hour)
			phase, reason := test.phase, test.reason
			if phase == "" {
				phase, reason = v1alpha1.CheckError, v1alpha1.ReasonNotMeasured
			}
			failed := ""
			if phase == v1alpha1.CheckFailed && serviceOfProbe(p) == "" {
				failed = "a"
			}
			p.want(phase, reason, failed)
			if c := p.check(); !strings.Contains(c.Message, test.message) || strings.Contains(c.Message, secret) {
				t.Errorf("the message is %s", c.Message)
			}
			log.mu.Lock()
			defer log.mu.Unlock()
			if i := slices.IndexFunc(log.to, func(to string) bool { return to != podIP+":"+strconv.Itoa(int(port)) }); i >= 0 {
				t.Errorf("it dialled %s", log.to[i])
			}
			if len(log.to) != test.calls || int(seen.Load()) != test.calls {
				t.Errorf("it dialled %v, and was seen %d times", log.to, seen.Load())
			}
		})
	}
	if n := otherSeen.Load(); n != 0 {
		t.Errorf("another server was called %d times", n)
	}
}

func serviceOfProbe(p *probed) string { return p.s.Policies[0].Spec.Checks[0].Probe.Service }

// TestProbeOfServiceThatChanges: a Service that becomes bad while it is probed is no longer
// called, and is called again when it becomes good.
func TestProbeOfServiceThatChanges(t *testing.T) {
	server, seen := serve(t, func(http.ResponseWriter, *http.Request) {})
	p, log := newProbed(t, portOn(t, server), "a"), &dialled{}
	p.checks.probe.caller.guard = log.guard()
	service(func(*corev1.Service) {})(p)
	p.run(5 * time.Second)
	var s corev1.Service
	if err := p.live.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, &s); err != nil {
		t.Fatal(err)
	}
	s.Spec.Selector = nil
	if err := p.live.Update(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	p.run(5 * time.Minute)
	p.want(v1alpha1.CheckRunning, "", "")
	if n := seen.Load(); n != 1 {
		t.Errorf("it was called %d times", n)
	}
	s.Spec.Selector = map[string]string{"app": "web"}
	if err := p.live.Update(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	p.run(time.Hour)
	p.want(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "")
}
