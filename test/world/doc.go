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

// Package world runs the operator in process, against a cluster in process, in
// time that is not real.
//
// A [World] has an API server (the fake client of controller-runtime, with what
// it lacks put around it: admission, UIDs, generations, patches that are refused
// as an API server refuses them), a model of the deployment controller, the
// kubelets and garbage collection, and AlterShield Server (its simulator). A
// [Process] is one manager: the real controllers with their real watches, queues
// and predicates, the real webhooks and the real handler of callbacks, around a
// cache that sees what happened when the world lets it.
//
// It lives in a bubble of testing/synctest: clocks stand still until everything
// waits, and then jump. A scheduler lets one goroutine go on at a time, so that a
// story is told in the same order each time, or in one that a seed chooses.
//
// With nodes ([Options]) there are a scheduler, and kubelets that pull images, run
// what [Image] says, back off and lose their nodes, with the times that real ones
// take. Without, which is quicker, pods start at once.
//
// A [Story] is what users do, and what must come of it. [Sweep] tells it once to
// learn which writes the operator makes, and again for each write with a fault
// at it, and compares how things end.
package world
