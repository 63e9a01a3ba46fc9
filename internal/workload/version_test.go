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

package workload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/randfill"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// walkthrough is the first preimage in the specification of versions.
const walkthrough = `{"metadata":{"creationTimestamp":null,"labels":{"app":"sleep","test":"123"}},"spec":{"containers":[{"name":"sleep",` +
	`"image":"busybox","command":["/bin/sleep","infinity"],"resources":{},"terminationMessagePath":"/dev/termination-log",` +
	`"terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],"restartPolicy":"Always",` +
	`"terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{},"schedulerName":"default-scheduler"}}`

const (
	walkthroughVersion = "c6c45d23c098bdf181853a85b60b5d74"
	repairVersion      = "6a8ff823a5011291b0f02a1d83c2222d"
)

// decode reads JSON as client-go does for unstructured objects.
func decode(t testing.TB, data string) map[string]any {
	t.Helper()
	var template map[string]any
	if err := utiljson.Unmarshal([]byte(data), &template); err != nil {
		t.Fatal(err)
	}
	return template
}

func TestVersion(t *testing.T) {
	metadata := func(s string) string {
		return strings.Replace(walkthrough, `"metadata":{"creationTimestamp":null,"labels":{"app":"sleep","test":"123"}}`, s, 1)
	}
	tests := map[string]struct {
		template string
		want     string
	}{
		"first vector":  {template: walkthrough, want: walkthroughVersion},
		"second vector": {template: strings.Replace(walkthrough, `"123"`, `"1234"`, 1), want: repairVersion},
		"keys in another order, with whitespace": {
			template: `
			{"spec":{"schedulerName":"default-scheduler","securityContext":{},"dnsPolicy":"ClusterFirst",
			  "terminationGracePeriodSeconds":30,"restartPolicy":"Always","containers":[{
			    "imagePullPolicy":"IfNotPresent","terminationMessagePolicy":"File","terminationMessagePath":"/dev/termination-log",
			    "resources":{},"command":["/bin/sleep","infinity"],"image":"busybox","name":"sleep"}]},
			 "metadata":{"labels":{"test":"123","app":"sleep"},"creationTimestamp":null}}`,
			want: walkthroughVersion,
		},
		"creationTimestamp omitted": {template: strings.Replace(walkthrough, `"creationTimestamp":null,`, "", 1), want: walkthroughVersion},
		"creationTimestamp set": {
			template: strings.Replace(walkthrough, `"creationTimestamp":null,`, `"creationTimestamp":"2024-01-01T00:00:00Z",`, 1),
			want:     walkthroughVersion,
		},
		"resources omitted": {template: strings.Replace(walkthrough, `"resources":{},`, "", 1), want: walkthroughVersion},
		"empty optional fields": {
			template: strings.Replace(walkthrough, `"spec":{`,
				`"spec":{"volumes":[],"nodeSelector":{},"hostNetwork":false,"hostname":"","affinity":null,`, 1),
			want: walkthroughVersion,
		},
		"empty annotations": {template: strings.Replace(walkthrough, `"labels"`, `"annotations":{},"labels"`, 1), want: walkthroughVersion},
		"version label": {
			template: strings.Replace(walkthrough, `"app":"sleep",`, `"`+v1alpha1.VersionLabel+`":"abc","app":"sleep",`, 1),
			want:     walkthroughVersion,
		},
		"no metadata":  {template: metadata(`"ignored":0`), want: mustVersion(t, metadata(`"metadata":{},"ignored":0`))},
		"labels empty": {template: metadata(`"metadata":{"labels":{}}`), want: mustVersion(t, metadata(`"metadata":{}`))},
		"the version label alone": {
			template: metadata(`"metadata":{"labels":{"` + v1alpha1.VersionLabel + `":"abc"}}`), want: mustVersion(t, metadata(`"metadata":{}`)),
		},
		"a float that is no integer":  {template: metadata(`"new":1.50`), want: mustVersion(t, metadata(`"new":1.5`))},
		"an integer in another guise": {template: metadata(`"new":1e2`), want: mustVersion(t, metadata(`"new":100`))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			raw, err := versionOfRaw([]byte(tt.template))
			if err != nil {
				t.Fatal(err)
			}
			if raw != tt.want {
				t.Errorf("versionOfRaw() = %s, want %s", raw, tt.want)
			}
			if got := Version(decode(t, tt.template)); got != tt.want {
				t.Errorf("Version() = %s, want %s", got, tt.want)
			}
		})
	}
}

// mustVersion also checks that a variant differs from the walkthrough.
func mustVersion(t *testing.T, template string) string {
	t.Helper()
	v, err := versionOfRaw([]byte(template))
	if err != nil {
		t.Fatal(err)
	}
	if v == walkthroughVersion {
		t.Fatalf("%s has the version of the walkthrough", template)
	}
	return v
}

func TestVersionDiffers(t *testing.T) {
	tests := map[string]struct {
		old, new string
	}{
		"unknown field of the template":    {old: `"spec":{`, new: `"future":{},"spec":{`},
		"unknown field of the spec":        {old: `"spec":{`, new: `"spec":{"future":0,`},
		"unknown field of a container":     {old: `"name":"sleep"`, new: `"name":"sleep","future":null`},
		"unknown field of the metadata":    {old: `"labels"`, new: `"future":"x","labels"`},
		"security context gone":            {old: `"securityContext":{},`, new: ``},
		"pointer to an empty struct":       {old: `"spec":{`, new: `"spec":{"affinity":{},`},
		"pointer to false":                 {old: `"spec":{`, new: `"spec":{"enableServiceLinks":false,`},
		"annotation":                       {old: `"labels"`, new: `"annotations":{"a":"b"},"labels"`},
		"order of a list":                  {old: `"/bin/sleep","infinity"`, new: `"infinity","/bin/sleep"`},
		"hash label of the ReplicaSet":     {old: `"app":"sleep"`, new: `"app":"sleep","pod-template-hash":"1"`},
		"empty volume source":              {old: `"spec":{`, new: `"spec":{"volumes":[{"name":"a","emptyDir":{}}],`},
		"value of an unexpected type":      {old: `"containers":[`, new: `"volumes":"none","containers":[`},
		"list element of unexpected type":  {old: `"containers":[`, new: `"containers":["a",`},
		"object where there is a scalar":   {old: `"Always"`, new: `{}`},
		"scalar where there is an object":  {old: `"securityContext":{}`, new: `"securityContext":true`},
		"number beyond float64":            {old: `"spec":{`, new: `"spec":{"future":1e999,`},
		"integer that float64 cannot hold": {old: `"spec":{`, new: `"spec":{"future":9007199254740993,`},
	}
	seen := map[string]string{walkthroughVersion: "the walkthrough"}
	for name, tt := range tests {
		changed := strings.Replace(walkthrough, tt.old, tt.new, 1)
		got, err := versionOfRaw([]byte(changed))
		if err != nil {
			t.Fatal(name, err)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the version of %s", name, other)
		}
		seen[got] = name
	}
}

func TestCanonicalKeepsUnknownFields(t *testing.T) {
	template := decode(t, `{"zz":{"b":[{"d":1,"c":null}],"a":"<>"},"spec":{"containers":[{"zz":1,"aa":{},"name":"a"}],"aa":[]},"metadata":{}}`)
	want := `{"metadata":{"creationTimestamp":null},"spec":{"containers":[{"name":"a","resources":{},"aa":{},"zz":1}],"aa":[]},` +
		`"zz":{"a":"\u003c\u003e","b":[{"c":null,"d":1}]}}`
	if diff := cmp.Diff(want, string(canonical(template))); diff != "" {
		t.Error(diff)
	}
}

// TestCanonicalZeroValues covers what the struct prints for missing fields: it must not matter
// whether the API server omits them.
func TestCanonicalZeroValues(t *testing.T) {
	tests := map[string]struct {
		spec, want string
	}{
		"nothing at all": {
			spec: `{}`,
			want: `{"containers":null}`,
		},
		"ephemeral volume": {
			spec: `{"volumes":[{"ephemeral":{"volumeClaimTemplate":{}}}]}`,
			want: `{"volumes":[{"name":"","ephemeral":{"volumeClaimTemplate":{"metadata":{"creationTimestamp":null},` +
				`"spec":{"resources":{}}}}}],"containers":null}`,
		},
		"divisor": {
			spec: `{"containers":[{"env":[{"name":"a","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu"}}}]}]}`,
			want: `{"containers":[{"name":"","env":[{"name":"a","valueFrom":{"resourceFieldRef":` +
				`{"resource":"limits.cpu","divisor":"0"}}}],"resources":{}}]}`,
		},
		"projected volume": {
			spec: `{"volumes":[{"name":"a","projected":{}}],"containers":[]}`,
			want: `{"volumes":[{"name":"a","projected":{"sources":null}}],"containers":null}`,
		},
		"probe": {
			spec: `{"containers":[{"livenessProbe":{"httpGet":{}}}]}`,
			want: `{"containers":[{"name":"","resources":{},"livenessProbe":{"httpGet":{"port":0}}}]}`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			want := `{"metadata":{"creationTimestamp":null},"spec":` + tt.want + `}`
			if diff := cmp.Diff(want, string(canonical(decode(t, `{"spec":`+tt.spec+`}`)))); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got, want := Version(nil), Version(map[string]any{}); got != want {
		t.Errorf("Version(nil) = %s, want that of an empty template, %s", got, want)
	}
}

func TestVersionOfRawFails(t *testing.T) {
	for _, data := range []string{"", "null", "[]", `"a"`, "{", "{} {}", walkthrough + "x"} {
		if v, err := versionOfRaw([]byte(data)); err == nil {
			t.Errorf("versionOfRaw(%q) = %s, want an error", data, v)
		}
	}
}

func TestReplicaSet(t *testing.T) {
	with := func(labels string) map[string]any {
		return decode(t, strings.Replace(walkthrough, `"app":"sleep"`, labels+`"app":"sleep"`, 1))
	}
	const hash = `"pod-template-hash":"7d9c",`
	label := `"` + v1alpha1.VersionLabel + `":"` + walkthroughVersion + `",`

	if got := versionOfReplicaSet(with(hash + label)); got != walkthroughVersion {
		t.Errorf("versionOfReplicaSet() = %s, want %s", got, walkthroughVersion)
	}
	if got := versionOfReplicaSet(with(hash)); got != walkthroughVersion {
		t.Errorf("versionOfReplicaSet() of a baseline = %s, want %s", got, walkthroughVersion)
	}
	if got, want := canonicalHash(with(hash+label)), canonicalHash(with(label)); got != want {
		t.Errorf("canonicalHash() of the ReplicaSet = %s, of its Deployment = %s", got, want)
	}
	if got := canonicalHash(with(hash)); got != walkthroughVersion {
		t.Errorf("canonicalHash() without labels = %s, want %s", got, walkthroughVersion)
	}
	if with, without := canonicalHash(with(label)), canonicalHash(with("")); with == without {
		t.Error("canonicalHash() does not depend on the version label")
	}
}

func TestVersionLeavesTemplateAlone(t *testing.T) {
	data := strings.Replace(walkthrough, `"app":"sleep"`, `"`+v1alpha1.VersionLabel+`":"a","pod-template-hash":"b","app":"sleep"`, 1)
	template := decode(t, data)
	Version(template)
	versionOfReplicaSet(template)
	canonicalHash(template)
	if diff := cmp.Diff(decode(t, data), template); diff != "" {
		t.Error(diff)
	}
}

// TestTableIsFrozen fails if the table changes: that would change the versions of existing
// workloads.
func TestTableIsFrozen(t *testing.T) {
	var b strings.Builder
	var walk func(o *object)
	walk = func(o *object) {
		for _, f := range o.fields {
			fmt.Fprintln(&b, f.key, f.kind, f.zero)
			if f.of != nil {
				walk(f.of)
			}
		}
		fmt.Fprintln(&b)
	}
	walk(keysOfPodTemplateSpec)
	const want = "e36471954c3bb105e665bffcda060051"
	if got := digest([]byte(b.String())); got != want {
		t.Errorf("the table has the digest %s, want %s", got, want)
	}
}

// TestCanonicalIsEncodingJSON compares with the typed struct, for templates with all its fields. If
// k8s.io/api gets a new field, clear it in randomTemplate: the table must not change.
func TestCanonicalIsEncodingJSON(t *testing.T) {
	for seed := range int64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			template := randomTemplate(seed)
			data, err := json.Marshal(template)
			if err != nil {
				t.Fatal(err)
			}
			want := strings.ReplaceAll(string(data), `"creationTimestamp":"`+created.Format(time.RFC3339)+`"`, `"creationTimestamp":null`)

			content := decode(t, string(data))
			if diff := cmp.Diff(want, string(canonical(content))); diff != "" {
				t.Fatal(diff)
			}
			var shuffled bytes.Buffer
			shuffle(&shuffled, rand.New(rand.NewSource(seed)), content)
			raw, err := versionOfRaw(shuffled.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if got := Version(content); got != raw || got != digest([]byte(want)) {
				t.Errorf("Version() = %s, versionOfRaw() of it shuffled = %s, want %s", got, raw, digest([]byte(want)))
			}
			// The output of a server that omits creationTimestamp.
			omitted := strings.ReplaceAll(string(data), `"creationTimestamp":"`+created.Format(time.RFC3339)+`",`, "")
			if got := Version(decode(t, omitted)); got != raw {
				t.Errorf("Version() without creationTimestamp = %s, want %s", got, raw)
			}
		})
	}
}

var created = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

// randomTemplate returns a pod template with valid values; seeds below five fill all fields.
func randomTemplate(seed int64) *corev1.PodTemplateSpec {
	nilChance := 0.4
	if seed < 5 {
		nilChance = 0
	}
	filler := randfill.NewWithSeed(seed).NilChance(nilChance).NumElements(1, 2).Funcs(
		func(s *string, c randfill.Continue) {
			const alphabet = "abc-/.019 \"\\<>&\u2028\t\né中😀\x7f"
			runes := []rune(alphabet)
			for range 1 + c.Intn(8) {
				*s += string(runes[c.Intn(len(runes))])
			}
		},
		func(q *resource.Quantity, c randfill.Continue) {
			*q = resource.MustParse(fmt.Sprintf("%d%s", c.Intn(5000), []string{"", "m", "Mi", "G", "e3"}[c.Intn(5)]))
			_ = q.String()
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			if *v = intstr.FromInt32(c.Int31()); c.Bool() {
				*v = intstr.FromString("http")
			}
		},
		func(v *metav1.Time, _ randfill.Continue) { v.Time = created.Local() },
		// Raw JSON prints as it is; no pod template has it.
		func(v *metav1.FieldsV1, _ randfill.Continue) { *v = *metav1.NewFieldsV1(`{"a":{}}`) },
		func(v *metav1.ObjectMeta, c randfill.Continue) {
			c.FillNoCustom(v)
			v.CreationTimestamp = metav1.NewTime(created.Local())
		},
	)
	template := &corev1.PodTemplateSpec{}
	filler.Fill(template)
	if len(template.Spec.Containers) == 0 {
		template.Spec.Containers = []corev1.Container{{Name: "a"}}
	}
	return template
}

// shuffle prints JSON with keys in random order and whitespace between tokens.
func shuffle(out *bytes.Buffer, r *rand.Rand, v any) {
	out.WriteString([]string{"", " ", "\n\t"}[r.Intn(3)])
	switch v := v.(type) {
	case map[string]any:
		keys := slices.Collect(maps.Keys(v))
		r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		out.WriteByte('{')
		for i, key := range keys {
			if i > 0 {
				out.WriteByte(',')
			}
			shuffle(out, r, key)
			out.WriteByte(':')
			shuffle(out, r, v[key])
		}
		out.WriteByte('}')
	case []any:
		out.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				out.WriteByte(',')
			}
			shuffle(out, r, item)
		}
		out.WriteByte(']')
	default:
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		out.Write(b)
	}
	out.WriteString([]string{"", " "}[r.Intn(2)])
}

func BenchmarkVersion(b *testing.B) {
	template := decode(b, walkthrough)
	b.ReportAllocs()
	for b.Loop() {
		Version(template)
	}
}

func BenchmarkVersionOfRaw(b *testing.B) {
	data, err := json.Marshal(randomTemplate(0))
	if err != nil {
		b.Fatal(err)
	}
	for name, data := range map[string][]byte{"walkthrough": []byte(walkthrough), "every field": data} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := versionOfRaw(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
