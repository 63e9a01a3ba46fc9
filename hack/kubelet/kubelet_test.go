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

package kubelet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestEndpointsOf(t *testing.T) {
	endpoint := func(ip string, ready, serving, terminating bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}}
	}
	service := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 443}}}}
	for name, tc := range map[string]struct {
		port      int32
		endpoints []discoveryv1.Endpoint
		want      []string
	}{
		"ready ones":                  {443, []discoveryv1.Endpoint{endpoint("10.0.0.1", true, true, false), endpoint("10.0.0.2", false, false, false)}, []string{"10.0.0.1:9443"}},
		"not those that end":          {443, []discoveryv1.Endpoint{endpoint("10.0.0.1", true, true, false), endpoint("10.0.0.2", false, true, true)}, []string{"10.0.0.1:9443"}},
		"those that end, if no other": {443, []discoveryv1.Endpoint{endpoint("10.0.0.1", false, false, false), endpoint("10.0.0.2", false, true, true)}, []string{"10.0.0.2:9443"}},
		"none":                        {443, []discoveryv1.Endpoint{endpoint("10.0.0.1", false, false, true)}, nil},
		"unknown is ready":            {443, []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}, []string{"10.0.0.1:9443"}},
		"another port":                {80, []discoveryv1.Endpoint{endpoint("10.0.0.1", true, true, false)}, nil},
		"no port":                     {81, []discoveryv1.Endpoint{endpoint("10.0.0.1", true, true, false)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			slice := &discoveryv1.EndpointSlice{Endpoints: tc.endpoints, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("b"), Port: ptr.To[int32](9443)}}}
			var got []string
			for _, at := range endpointsOf(service, tc.port, []*discoveryv1.EndpointSlice{slice}) {
				got = append(got, at.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "1", "EMPTY": ""}
	for text, want := range map[string]string{
		"": "", "plain": "plain", "--a=$(A)": "--a=1", "$(A)$(A)": "11", "$(EMPTY)x": "x", "$(B)": "$(B)", "$$(A)": "$(A)", "$": "$", "$(A": "$(A", "$$": "$",
	} {
		if got := expand(text, env); got != want {
			t.Errorf("expand(%q) = %q, want %q", text, got, want)
		}
	}
}

func examplePod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "manager-1", Namespace: "system", UID: "u"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, EnableServiceLinks: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532)},
			Containers: []corev1.Container{{
				Name: "manager", Image: "example.org/manager:v1", Args: []string{"--namespace=$(POD_NAMESPACE)"},
				Env: []corev1.EnvVar{
					{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
					{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k", LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}},
				},
				Ports:         []corev1.ContainerPort{{Name: "health", ContainerPort: 8081}},
				LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("health")}}},
			}},
		},
	}
}

func TestSpec(t *testing.T) {
	p := examplePod()
	c := &p.Spec.Containers[0]
	services := []*corev1.Service{
		{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "system"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.2", Ports: []corev1.ServicePort{{Port: 80}, {Port: 53, Protocol: corev1.ProtocolUDP}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "headless", Namespace: "system"}, Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 80}}}},
	}
	ip := netip.MustParseAddr("10.80.0.1")
	refs := references{secret: func(name, key string) (string, bool, error) { return name + "/" + key, true, nil }}
	env, err := environment(p, c, ip, services, refs)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"HOSTNAME=manager-1", "KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443", "KUBERNETES_SERVICE_PORT_HTTPS=443",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "POD_NAMESPACE=system", "SECRET=s/k",
	}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("without service links: %s", diff)
	}
	p.Spec.EnableServiceLinks = nil
	if env, err = environment(p, c, ip, services, refs); err != nil || !strings.Contains(strings.Join(env, " "), "WEB_SERVICE_HOST=10.96.0.2") {
		t.Errorf("with service links: %v %v", env, err)
	}
	refs.secret = func(string, string) (string, bool, error) { return "", false, nil }
	if _, err := environment(p, c, ip, services, refs); err == nil || !strings.Contains(err.Error(), "SECRET: there is no key k of Secret s") {
		t.Errorf("without the secret: %v", err)
	}
	c.Env[1].ValueFrom.SecretKeyRef.Optional = ptr.To(true)
	if env, err = environment(p, c, ip, services, refs); err != nil || strings.Contains(strings.Join(env, " "), "SECRET=") {
		t.Errorf("without a secret that may be missing: %v %v", env, err)
	}

	image := &Image{Name: "example.org/manager", Entrypoint: []string{"/manager"}}
	if diff := cmp.Diff([]string{"/manager", "--namespace=system"}, command(c, image, env)); diff != "" {
		t.Error(diff)
	}
	for reference, want := range map[string]bool{
		"example.org/manager": true, "example.org/manager:v2": true, "example.org/manager@sha256:0": true, "example.org/manager:v1@sha256:0": true,
		"example.org/other:v1": false, "example.org:80/manager": false,
	} {
		if image.is(reference) != want {
			t.Errorf("%s is the image: %t, want %t", reference, !want, want)
		}
	}
	if uid, gid, err := userOf(p, c, image); uid != 65532 || gid != 0 || err != nil {
		t.Errorf("user %d:%d, %v", uid, gid, err)
	}
	c.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To[int64](0), ReadOnlyRootFilesystem: ptr.To(true)}
	if _, _, err := userOf(p, c, image); err == nil {
		t.Error("root is let in although it must not be")
	}
	if !readOnlyRoot(c) {
		t.Error("the root file system is not read-only")
	}
	if port, err := portOf(c, intstr.FromString("health")); port != 8081 || err != nil {
		t.Errorf("port %d, %v", port, err)
	}
	if _, err := portOf(c, intstr.FromString("other")); err == nil {
		t.Error("a port that is not there is found")
	}
	if diff := cmp.Diff([]netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:443"), netip.MustParseAddrPort("10.96.0.2:80")}, serviceAddresses(services), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Error(diff)
	}
	if hosts := hostsFile(ip, p.Name, services); !strings.Contains(hosts, "10.96.0.2\tweb.system web.system.svc web.system.svc.cluster.local\n") || strings.Contains(hosts, "headless") {
		t.Error(hosts)
	}
}

// What cannot be done is said, not left out.
func TestUnsupported(t *testing.T) {
	if err := unsupported(examplePod()); err != nil {
		t.Errorf("an ordinary pod: %v", err)
	}
	for want, change := range map[string]func(*corev1.PodSpec){
		"more than one container": func(s *corev1.PodSpec) { s.Containers = append(s.Containers, s.Containers[0]) },
		"init containers":         func(s *corev1.PodSpec) { s.InitContainers = s.Containers },
		"the host's namespaces":   func(s *corev1.PodSpec) { s.HostNetwork = true },
		"restartPolicy":           func(s *corev1.PodSpec) { s.RestartPolicy = corev1.RestartPolicyNever },
		"envFrom":                 func(s *corev1.PodSpec) { s.Containers[0].EnvFrom = []corev1.EnvFromSource{{}} },
		"preStop other than sleep": func(s *corev1.PodSpec) {
			s.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{}}
		},
		"a probe other than httpGet": func(s *corev1.PodSpec) { s.Containers[0].StartupProbe = &corev1.Probe{} },
		"subPath":                    func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts = []corev1.VolumeMount{{SubPath: "x"}} },
	} {
		p := examplePod()
		change(&p.Spec)
		if err := unsupported(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestStatus(t *testing.T) {
	p, now := examplePod(), time.Unix(1000, 0)
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	ended := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	for name, tc := range map[string]struct {
		state containerState
		phase corev1.PodPhase
		ready corev1.ConditionStatus
	}{
		"starting":   {containerState{current: running}, corev1.PodRunning, corev1.ConditionFalse},
		"ready":      {containerState{current: running, started: true, ready: true}, corev1.PodRunning, corev1.ConditionTrue},
		"no start":   {containerState{current: waiting}, corev1.PodPending, corev1.ConditionFalse},
		"crash loop": {containerState{current: waiting, last: ended(1), restarts: 2}, corev1.PodRunning, corev1.ConditionFalse},
		"over":       {containerState{current: ended(0)}, corev1.PodSucceeded, corev1.ConditionFalse},
		"killed":     {containerState{current: ended(137)}, corev1.PodFailed, corev1.ConditionFalse},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.state.status(p, netip.MustParseAddr("10.80.0.1"), now)
			if got.Phase != tc.phase || got.PodIP != "10.80.0.1" || got.ContainerStatuses[0].RestartCount != tc.state.restarts {
				t.Errorf("%+v", got)
			}
			for _, c := range got.Conditions {
				if c.Type == corev1.PodReady && c.Status != tc.ready {
					t.Errorf("ready is %s", c.Status)
				}
			}
			// A second look changes no time.
			p := p.DeepCopy()
			p.Status = *got
			if diff := cmp.Diff(got, tc.state.status(p, netip.MustParseAddr("10.80.0.1"), now.Add(time.Hour))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestImageOf(t *testing.T) {
	const dockerfile = "FROM golang AS builder\nCOPY . .\nFROM scratch\nCOPY --from=builder /x /manager\nUSER 65532:65533\nENTRYPOINT [\"/manager\"]\n"
	got, err := imageOf(dockerfile, "bin/manager")
	want := Image{Files: map[string]string{"/manager": "bin/manager"}, Entrypoint: []string{"/manager"}, UID: 65532, GID: 65533}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, bad := range []string{"", "FROM scratch\nENTRYPOINT [\"/manager\"]", strings.Replace(dockerfile, "65532:", "nonroot:", 1), strings.Replace(dockerfile, "[\"/manager\"]", "/manager", 1)} {
		if _, err := imageOf(bad, "bin/manager"); err == nil {
			t.Errorf("accepted: %q", bad)
		}
	}
}

func TestWriteVolume(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	read := func() map[string]string {
		got := map[string]string{}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "..") {
				data, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err != nil {
					t.Fatal(err)
				}
				got[e.Name()] = string(data)
			}
		}
		return got
	}
	for i, content := range []map[string]string{{"a": "1", "b": "2"}, {"a": "1", "b": "2"}, {"a": "3"}, {}} {
		data := map[string][]byte{}
		for k, v := range content {
			data[k] = []byte(v)
		}
		before, _ := os.Readlink(filepath.Join(dir, dataLink))
		if err := writeVolume(dir, data); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(content, read()); diff != "" {
			t.Error(diff)
		}
		if after, _ := os.Readlink(filepath.Join(dir, dataLink)); (after == before) != (i == 1) {
			t.Errorf("turn %d: %q became %q", i, before, after)
		}
	}
}

func TestSockets(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go serveSocket(t.Context(), l, func(_ context.Context, target string) (net.Conn, error) {
		if target != "here" {
			return nil, errors.New("nobody is\nthere")
		}
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			_, _ = io.CopyN(theirs, theirs, 4)
		}()
		return ours, nil
	})
	if _, err := dialSocket(t.Context(), socket, "there", time.Second); err == nil || !strings.Contains(err.Error(), "nobody is there") {
		t.Errorf("dial there: %v", err)
	}
	conn, err := dialSocket(t.Context(), socket, "here", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("echo")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != "echo" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
