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
// simulated time.
//
// A [World] has an API server (the fake client of controller-runtime, and around
// it admission, UIDs, generations, and the refusals of an API server), a model of
// the Deployment controller, the kubelets and garbage collection, and AlterShield
// Server (its simulator). A [Process] is one manager: the real controllers with
// their real watches, queues and predicates, the real webhooks and the real
// handler of callbacks, around a cache that reads changes when the world lets it.
//
// A world lives in a bubble of testing/synctest: clocks stand still until
// everything waits, and then jump. A scheduler runs one goroutine at a time, so
// that a story runs in the same order each time, or in an order chosen by a seed.
//
// With nodes ([Options]) there are a scheduler, and kubelets that pull images, run
// containers as [Image] says, back off and lose their nodes, with the times of
// real ones. Without nodes, which is quicker, pods start at once.
//
// A [Story] is a sequence of acts of users, and their expected results. [Sweep]
// runs a story again for each write of the operator, with a fault at that write,
// and compares the endings.
package world
