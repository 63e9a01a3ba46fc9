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

package docs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/hack/simulator/journal"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

const (
	first     = walkthrough.FirstRelease
	system    = "altershieldoperator-system"
	staysUp   = system + "/default/stays-up"
	secret    = "the token of the stories"
	admission = "stories.admission"
	needsPods = "the manager's pods are only simulated here: nothing listens, and they have no logs"
)

// download matches the address of a manifest of the operator; a story uses the file of this checkout.
var download = regexp.MustCompile(`\S*/quick-start\.yaml`)

// plan says how to run a document: before its first command, after its last command, and at commands that cannot just be run.
type plan struct {
	begin, end func(s *story)
	steps      []step
}

// stories has the plans of documents.
var stories = func() map[string]plan {
	all := map[string]plan{}
	for _, of := range []map[string]plan{
		startStories, releaseStories, alertsStories, productionStories, policiesStories, holdStories, serverStories, referenceStories,
	} {
		maps.Copy(all, of)
	}
	return all
}()

// shownText is a block without commands.
type shownText struct {
	document string
	// begins is the beginning of its first line, masked.
	begins string
	// prints is its name for shows; empty for a block that is no output.
	prints string
}

func (x shownText) is(path string, b block) bool {
	return path == x.document && b.language == "" && strings.HasPrefix(masked(b.lines[0]), x.begins)
}

var texts = []shownText{
	{"docs/reference/altershield-server.md", "sign = ", ""},
	{"docs/tasks/connect-altershield-server.md", "altershield-operator: --altershield-token-file", "token"},
	{"docs/reference/altershield-server.md", `{"cluster":`, "parameters"},
	{"docs/reference/altershield-server.md", `{"batch":`, "results"},
	{"docs/reference/altershield-server.md", `{"type":"workloadExternal"`, ""},
	{"docs/reference/altershield-server.md", `{"code":200,"message":"","points":`, ""},
	{"docs/tasks/verify-with-your-own-service.md", `{"apiVersion":`, ""},
	{"docs/tasks/verify-with-your-own-service.md", `{"id":`, ""},
	{"docs/tasks/verify-with-your-own-service.md", "import http.server", ""},
	{"docs/reference/altershield-server.md", "TIME default/sleep c6c45d23 request order submitted", "journal"},
	{"docs/reference/altershield-server.md", "The release failed its verification: version c6a7c50d1c46819baae80eb37d084099: ", "failure"},
}

// serverTexts checks the documented requests and journal of the server, and the error of a manager with an unusable token.
func (s *story) serverTexts() {
	s.t.Helper()
	s.write("short", "0123456789")
	printed, err := s.shell("bin/manager --altershield-token-file=short")
	if err == nil {
		s.t.Errorf("the manager starts with a token of 10 bytes")
	}
	s.shows("token", strings.ReplaceAll(printed, "short", "/etc/altershield/token"))

	order := s.do("kubectl get cwl %s -o jsonpath={.status.orderId}", first)
	if err := s.server.WaitFor(s.t.Context(), func(j simulator.Journal) bool { return len(j.Ends(order)) > 0 }); err != nil {
		s.t.Fatal(err)
	}
	var lines, parameters, results strings.Builder
	narrator := journal.NewNarrator()
	for _, e := range s.server.Journal().Of(order) {
		fmt.Fprintln(&lines, narrator.Line(e))
		switch request := e.Request.(type) {
		case *altershield.SubmitOrderRequest:
			fmt.Fprintln(&parameters, request.ChangeParamJSON)
		case *altershield.FinishNodeRequest:
			fmt.Fprintln(&results, request.ChangeResultJSON)
		}
	}
	s.shows("journal", lines.String())
	s.shows("parameters", parameters.String())
	s.shows("results", results.String())

	s.server.Script(simulator.Script{
		Match:   simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePost},
		Verdict: altershield.VerdictFail, Times: 1,
		Rules: []altershield.Rule{{Name: "error rate", Msg: "5xx above 1 %", Verdict: altershield.VerdictFail}},
	})
	s.do("kubectl set image deployment/sleep sleep=busybox:1.32")
	s.wait("1", "kubectl get cwl | grep -c Suspend")
	s.poll(func() bool {
		const uid = "$(kubectl get deployment sleep -o jsonpath={.metadata.uid})"
		printed, _ = s.shell("kubectl get events --field-selector involvedObject.uid=" + uid + ",reason=ReleaseSuspended " +
			"-o 'jsonpath={.items[*].message}'")
		return printed != ""
	})
	printed += "\n"
	for _, e := range s.server.Journal() {
		printed += narrator.Line(e).String() + "\n"
	}
	s.shows("failure", printed)
}

// getVersion prints the version of the sample.
const getVersion = `kubectl get deployment sleep -o jsonpath='{.metadata.labels.admission-webhook-altershield\.antgroup\.com/version}'`

// current returns the name of the current release of the sample.
func current(s *story) string {
	return "sleep--x--" + s.do(getVersion)
}

// policy waits until the operator has accepted a policy in this mode.
func (s *story) policy(namespace, name, mode string) {
	s.t.Helper()
	s.wait("true "+mode, `kubectl -n %s get defensepolicy %s -o go-template='{{$generation := .metadata.generation}}`+
		`{{range .status.conditions}}{{if eq .type "Accepted"}}{{and (eq .status "True") (eq .observedGeneration $generation)}}{{end}}{{end}} `+
		`{{.spec.mode}}'`, namespace, name)
}

// check waits until a check of the first batch of a release is in a phase, for a reason.
func (s *story) check(release, name, phase, reason string) {
	s.t.Helper()
	s.wait(strings.TrimSpace(phase+" "+reason),
		`kubectl get changepod %s--x--1 -o jsonpath='{range .status.checks[?(@.name=="%s")]}{.phase} {.reason}{end}'`, release, name)
}

// probed creates a pod that answers 404 to the probe of the sample policy, and waits for the event about it.
func (s *story) probed() {
	s.t.Helper()
	s.policy("default", "answers", "Observe")
	addresses, err := controlplane.PodAddresses(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	// A server that answers 404 takes the port of the sample.
	at := slices.IndexFunc(addresses, func(ip netip.Addr) bool {
		l, err := (&net.ListenConfig{}).Listen(s.t.Context(), "tcp", netip.AddrPortFrom(ip, 8080).String())
		if err != nil {
			return false
		}
		server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: patience}
		go func() { _ = server.Serve(l) }()
		s.t.Cleanup(func() { _ = server.Close() })
		return true
	})
	if at < 0 {
		s.t.Logf("%s: the probe is not tested, because port 8080 is free on none of the addresses that the operator calls (%v)",
			s.path, addresses)
		return
	}
	s.do("kubectl create deployment web --image=busybox --port=8080")
	s.do(`kubectl patch deployment web -p '{"spec":{"template":{"metadata":{"annotations":{"%s":"%s"}}}}}'`,
		controlplane.PodIPAnnotation, addresses[at])
	const check = "default/answers/healthz"
	for range 4 { // three calls, ten seconds apart
		if s.poll(func() bool {
			printed, _ := s.shell("kubectl get events --field-selector reason=DryRun,involvedObject.name=web")
			return strings.Contains(printed, check) &&
				strings.Contains(printed, "GET /healthz on port 8080 was answered 404, and not 200-399, 3 times in a row")
		}) {
			s.wait("", "kubectl get deployment web -o jsonpath='{.metadata.labels.altershield\\.defense\\.antgroup\\.com/suspend}'")
			return
		}
	}
	s.t.Fatalf("%s: there is no event that %s would fail the pods", s.path, check)
}

// anyManager is the plan of documents that need a manager, with or without a server.
var anyManager = plan{begin: func(s *story) {
	if s.manager == nil {
		s.startManager(false)
	}
}}

func released(_ *story, command string) string {
	return download.ReplaceAllString(command, "quick-start.yaml")
}

// native is a workload without pods, of a kind that cannot be paused. The patch halted halts it.
type native struct {
	kind, spec, halted string
	// left is the patch that ends the halt; empty if no command waits for the end.
	left string
	// keeping are the commands that keep its pods when it is no longer defended.
	keeping []string
}

// nativeStory returns the plan of a document about such kinds.
func nativeStory(workloads ...native) plan {
	var t plan
	t.begin = func(s *story) {
		s.standAlone()
		s.do("kubectl label namespace default --overwrite admission-webhook-altershield=enabled")
		for _, n := range workloads {
			s.do(`kubectl apply -f - <<'END'
{"apiVersion":"apps/v1","kind":%[1]q,"metadata":{"name":"db"},"spec":{%[2]s,"selector":{"matchLabels":{"app":%[1]q}},
"template":{"metadata":{"labels":{"app":%[1]q}},"spec":{"nodeSelector":{"none":"such"},"containers":[{"name":"db","image":"busybox"}]}}}}
END`, n.kind, n.spec)
		}
	}
	t.end = func(s *story) {
		for _, n := range workloads {
			s.do("kubectl delete %s db --cascade=foreground", n.kind)
		}
		s.do("kubectl delete cwl,cpd --all")
	}
	for _, n := range workloads {
		t.steps = append(t.steps, n.steps()...)
	}
	return t
}

// steps returns the steps of its commands.
func (n native) steps() []step {
	lower := strings.ToLower(n.kind)
	name := func(_ *story, command string) string { return strings.Replace(command, "NAME", "db", 1) }
	of := []step{
		{
			command: "kubectl rollout undo " + lower + "/NAME", fill: name,
			before: func(s *story) {
				s.wait("1", "kubectl get controllerrevisions -l app=%s --no-headers | wc -l", n.kind)
				s.do("kubectl set image %s/db db=busybox:2", lower)
				s.wait("2", "kubectl get controllerrevisions -l app=%s --no-headers | wc -l", n.kind)
				s.do("kubectl patch %s/db --type=merge -p '%s'", lower, n.halted)
			},
		},
		{command: "kubectl altershield resume " + lower + "/NAME", skip: "it has no pods, so nothing halts it; the stories of the kinds run it"},
	}
	for i, command := range n.keeping {
		st := step{command: command, fill: name}
		if i == 0 && n.left != "" {
			st.before = func(s *story) { s.do("kubectl patch %s/db --type=merge -p '%s'", lower, n.left) }
		}
		of = append(of, st)
	}
	return of
}

func named(_ *story, command string) string { return strings.Replace(command, "NAME", "sleep", 1) }

func callbacks(s *story, command string) string {
	address := strings.TrimPrefix(s.manager.CallbackAddress(), "http://")
	return strings.NewReplacer("<operator>", address, "<address>", address).Replace(command)
}

// standAlone starts a manager without a server, unless one runs.
func (s *story) standAlone() {
	if s.manager == nil || !s.manager.Running() || s.server != nil {
		s.startManager(false)
	}
}

// startManager starts a manager with or without a server, in place of the running one.
func (s *story) startManager(connected bool) {
	s.t.Helper()
	s.stopManager()
	s.metrics = "127.0.0.1:" + s.freePort()
	args := []string{"--leader-elect=true", "--metrics-bind-address=" + s.metrics}
	if connected {
		s.write("manager-token", secret)
		s.server = simulator.New(simulator.Options{Token: secret, AdmissionScene: admission})
		if err := s.server.Start("127.0.0.1:0"); err != nil {
			s.t.Fatal(err)
		}
		args = append(args, "--altershield-url="+s.server.URL(), "--altershield-token-file="+filepath.Join(s.dir, "manager-token"),
			"--altershield-admission-scene="+admission)
	}
	s.removeWebhooks()
	var err error
	if s.manager, err = s.cluster.InstallManager(context.Background(), controlplane.ManagerOptions{Root: s.root, Args: args}); err != nil {
		s.t.Fatal(err)
	}
	if connected {
		s.server.SetCallbackURLs(s.manager.CallbackAddress() + altershield.CallbackPath)
	}
	if err := s.manager.Start(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *story) stopManager() {
	if s.manager != nil {
		if err := s.manager.Stop(); err != nil {
			s.t.Fatal(err)
		}
	}
	if s.server != nil {
		s.server.Shutdown()
		s.server = nil
	}
}

// removeWebhooks deletes the webhook configurations, so that others can be applied: the webhooks of the manifests lead to a Service, the
// webhooks of the test to this machine.
func (s *story) removeWebhooks() {
	for _, kind := range []string{"mutating", "validating"} {
		s.do("kubectl delete %[1]swebhookconfiguration altershieldoperator-%[1]s-webhook-configuration --ignore-not-found", kind)
	}
}

func (s *story) freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func (s *story) write(name, content string) {
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// state waits until a release is in a state.
func (s *story) state(release, state string) {
	s.t.Helper()
	s.wait(state, "kubectl get cwl %s -o jsonpath={.status.status}", release)
}

func (s *story) podOf(batch string) string {
	return s.do("kubectl get changepod %s -o 'jsonpath={.spec.podInfos[0].pod}'", batch)
}

// forget deletes the sample and its records.
func (s *story) forget() {
	s.do("kubectl delete deployment sleep --ignore-not-found --cascade=foreground")
	// The garbage collector discovers new kinds late.
	s.do("kubectl delete cwl,cpd,controllerrevisions --all")
}

// play runs steps of the walkthrough.
func (s *story) play(steps ...walkthrough.Step) {
	s.t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		s.t.Fatal(err)
	}
	c, err := client.New(s.cluster.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		s.t.Fatal(err)
	}
	player := &walkthrough.Player{Client: c, Namespace: "default", Kubectl: func(ctx context.Context, args ...string) (string, error) {
		cmd := s.cluster.KubectlCmd(ctx, args...)
		cmd.Dir = s.root
		out, err := cmd.CombinedOutput()
		return string(out), err
	}}
	if err := player.Play(s.t.Context(), steps...); err != nil {
		s.t.Fatal(err)
	}
}

// fresh releases the sample for the first time, and waits for its success.
func (s *story) fresh() {
	s.t.Helper()
	s.forget()
	s.play(walkthrough.Release)
	s.rolledOut()
}

// rolledOut waits until all pods have the current version.
func (s *story) rolledOut() {
	s.do("kubectl rollout status deployment/sleep --timeout=60s")
	s.wait("5", "kubectl get pods -l app=sleep -o name | wc -l")
}

// release releases an image, and waits until it has succeeded.
func (s *story) release(image string) {
	s.t.Helper()
	s.do("kubectl set image deployment/sleep sleep=%s", image)
	s.rolledOut()
	s.state("sleep--x--$("+getVersion+")", "Success")
}

// restored waits until the first release is restored.
func (s *story) restored() {
	s.t.Helper()
	s.wait(strings.TrimPrefix(first, "sleep--x--"), getVersion)
	s.rolledOut()
	s.state(first, "Success")
}

// block releases the sample, and fails a pod, so that the sample is blocked.
func (s *story) block() {
	s.t.Helper()
	s.fresh()
	s.play(walkthrough.Fail)
}

// hold releases the sample for the second time, and waits until the rollout is held.
func (s *story) hold() {
	s.t.Helper()
	s.fresh()
	s.do("kubectl set image deployment/sleep sleep=busybox:1.35")
	s.wait("600 7 3", "kubectl get deployment sleep -o jsonpath='{.spec.minReadySeconds} {.status.readyReplicas} {.status.updatedReplicas}'")
}

// applyStatefulSet creates a StatefulSet of five pods that fit no node.
func (s *story) applyStatefulSet() {
	s.t.Helper()
	s.do(`kubectl apply -f - <<'END'
{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"db"},
"spec":{"serviceName":"db","replicas":5,"podManagementPolicy":"Parallel","selector":{"matchLabels":{"app":"db"}},
"template":{"metadata":{"labels":{"app":"db"}},"spec":{"nodeSelector":{"none":"such"},"containers":[{"name":"db","image":"busybox"}]}}}}
END`)
}

// holdStatefulSet releases a StatefulSet for the second time. Admission holds the rollout: a patch back to partition 0 has no effect.
func (s *story) holdStatefulSet() {
	s.t.Helper()
	s.applyStatefulSet()
	s.do("kubectl set image statefulset/db db=busybox:2")
	s.do(`kubectl patch statefulset/db --type=merge -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}'`)
	if got := s.do("kubectl get statefulset db -o jsonpath={.spec.updateStrategy.rollingUpdate.partition}"); got != "4" {
		s.t.Errorf("docs/tasks/hold-rollouts.md: a StatefulSet of 5 pods that is held has the partition %q", got)
	}
}

// partition waits until the StatefulSet has this partition, and no annotation of a hold.
func (s *story) partition(is string) {
	s.t.Helper()
	s.wait(is, `kubectl get statefulset db -o jsonpath='{.spec.updateStrategy.rollingUpdate.partition} `+
		`{.metadata.annotations.altershield\.defense\.antgroup\.com/held}'`)
}

func ofStatefulSet(_ *story, command string) string { return strings.Replace(command, "NAME", "db", 1) }

// applyHeld applies the fields that a hold changed, server-side, as GitOps tools do: the values of the hold stay, and the hold continues.
// The creator of the sample owns one of the fields, so only the first apply forces conflicts.
func (s *story) applyHeld() {
	s.t.Helper()
	const own = `sed 's/^  replicas: 5/&\n  minReadySeconds: 0\n  progressDeadlineSeconds: 600/; s/image: busybox/&:1.35/' ` +
		`config/samples/sleep.yaml`
	const paced = "-o jsonpath='{.spec.minReadySeconds} {.spec.progressDeadlineSeconds}'"
	for _, how := range []string{"--server-side --force-conflicts", "--server-side", "--server-side --dry-run=server"} {
		if got := s.do("%s | kubectl apply %s --field-manager=git -f - %s", own, how, paced); !strings.HasSuffix(got, "600 1800") {
			s.t.Errorf("docs/tasks/hold-rollouts.md: apply %s of a workload that is held leads to %q", how, got)
		}
	}
	if s.do(`kubectl get deployment sleep -o jsonpath='{.metadata.annotations.altershield\.defense\.antgroup\.com/held}'`) == "" {
		s.t.Error("docs/tasks/hold-rollouts.md: the hold ended")
	}
}

// notHeld waits until the sample has these values, and no annotation of a hold.
func (s *story) notHeld(minReady, deadline string) {
	s.t.Helper()
	s.wait(strings.TrimSpace(minReady+" "+deadline),
		`kubectl get deployment sleep -o jsonpath='{.spec.minReadySeconds} {.spec.progressDeadlineSeconds} `+
			`{.metadata.annotations.altershield\.defense\.antgroup\.com/held}'`)
}

// pullFails waits until images cannot be pulled, and lets the operator roll back after a second.
func (s *story) pullFails() {
	s.t.Helper()
	s.wait("3", "kubectl get pods | grep -c -E 'ErrImagePull|ImagePullBackOff'")
	s.do("kubectl annotate deployment sleep altershield.defense.antgroup.com/rollback=1s")
}

// set changes a setting, and waits until it is in force.
func (s *story) set(name, spec string) {
	s.t.Helper()
	s.do(`kubectl -n %s patch oci %s --type=merge -p '{"spec":%s}'`, system, name, spec)
	s.inForce(name)
}

func (s *story) inForce(name string) {
	s.t.Helper()
	generation := s.do("kubectl -n %s get oci %s -o jsonpath={.metadata.generation}", system, name)
	s.wait(generation, "kubectl -n %s get oci %s -o jsonpath={.status.observedGeneration}", system, name)
}

func (s *story) outage(o simulator.Outage) {
	if err := s.server.SetOutage(o); err != nil {
		s.t.Fatal(err)
	}
}
