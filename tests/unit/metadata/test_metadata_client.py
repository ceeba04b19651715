"""Publication of the image to the parts of a node, in their order."""

from inline_controller import InlineController

from tierlog.metadata.client import MetadataClient, Publisher
from tierlog.metadata.image import ClusterImage


class Published(InlineController):
    """Publishes each image to one subscriber."""

    def __init__(self) -> None:
        self.subscriber = lambda old, new: None
        super().__init__(1)

    def subscribe(self, subscriber):
        self.subscriber = subscriber
        return lambda: setattr(self, "subscriber", lambda old, new: None)

    def do(self, command):
        before, reply = self.image, super().do(command)
        self.subscriber(before, self.image)
        return reply


def test_publishers_see_each_image_in_their_order():
    controller = Published()
    opened = controller.image
    controller.create("a", (1,))
    seen: list[tuple[str, list[str], list[str]]] = []

    def publisher(name: str, since: ClusterImage | None = None) -> Publisher:
        def follow(old: ClusterImage, new: ClusterImage) -> None:
            seen.append((name, sorted(old.topic_ids), sorted(new.topic_ids)))

        return Publisher(name, follow, lambda what, failure: None, since)

    end = MetadataClient(controller).publish_to((publisher("first"), publisher("second", opened)))
    assert seen == [("first", [], ["a"]), ("second", [], ["a"])]
    seen.clear()
    controller.create("b", (1,))
    assert seen == [("first", ["a"], ["a", "b"]), ("second", ["a"], ["a", "b"])]
    end()
    controller.create("c", (1,))
    assert len(seen) == 2


def test_publisher_that_fails_is_reported_and_the_others_see_the_image():
    controller = Published()
    reported: list[str] = []
    seen: list[int] = []

    def fail(old: ClusterImage, new: ClusterImage) -> None:
        raise ValueError("broken")

    fails = Publisher("replicas", fail, lambda what, failure: reported.append(f"{what}: {failure}"))
    follows = Publisher("groups", lambda old, new: seen.append(new.index), fails.report)
    MetadataClient(controller).publish_to((fails, follows))
    assert reported == ["replicas cannot follow the metadata: broken"]
    assert seen == [controller.image.index]
